"""MUSE-Books: a series of books is to be forgotten."""
