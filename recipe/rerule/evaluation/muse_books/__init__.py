"""MUSE-Books: requests, scores, and logs in open-unlearning's format."""
