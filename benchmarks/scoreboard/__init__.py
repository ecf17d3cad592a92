"""Methods compared by what they forget, what they keep, and what attacks bring back."""
