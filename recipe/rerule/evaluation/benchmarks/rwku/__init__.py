"""RWKU: prompts, records and scores, membership inference, fluency, utility sets."""
