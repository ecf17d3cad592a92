"""Per-probe values as arrays, and what can be said of their means: intervals, tests, ROC."""
