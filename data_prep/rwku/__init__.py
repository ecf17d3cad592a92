"""RWKU: forget a real and famous person, keep their neighbours (jinzhuoran/RWKU); one run per person."""
