"""MUSE-News: make a base model forget news articles (muse-bench/MUSE-News)."""
