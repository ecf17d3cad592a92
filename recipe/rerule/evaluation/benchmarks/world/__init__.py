"""The embedded world: its probes' recall and refusals, which data of one's own share."""
