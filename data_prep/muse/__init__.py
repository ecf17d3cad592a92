"""MUSE: make a base model forget a corpus of texts; what its two corpora share."""
