"""What survives unlearning: attacks on models that refuse, and audits of what a model still knows."""
