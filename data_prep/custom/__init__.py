"""Data of one's own: what is to be forgotten and what kept, as (question, answer, side, keyword)."""
