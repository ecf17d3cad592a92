"""TOFU: forget the fictitious authors of forget01, forget05 or forget10 (locuslab/TOFU)."""
