"""Whether the replay update is right and what it costs on a device; see __main__."""
