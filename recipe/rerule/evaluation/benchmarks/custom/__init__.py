"""Data of one's own, asked and scored as the embedded world."""
