"""MUSE, which has two corpora: requests, scores, and logs in open-unlearning's format."""
