"""MUSE-News: news articles are to be forgotten."""
