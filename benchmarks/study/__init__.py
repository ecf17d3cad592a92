"""Does replay help? Arms x seeds on small worlds (docs/results.md)."""
