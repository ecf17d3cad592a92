"""Readability, helpfulness and truthfulness of responses, scored by a judge model (docs/naturalness.md)."""
