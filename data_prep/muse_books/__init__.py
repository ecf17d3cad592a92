"""MUSE-Books: make a base model forget a series of books (muse-bench/MUSE-Books)."""
