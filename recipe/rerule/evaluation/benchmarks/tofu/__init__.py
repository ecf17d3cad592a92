"""TOFU: requests, scores, metrics, and logs in open-unlearning's and locuslab's formats."""
