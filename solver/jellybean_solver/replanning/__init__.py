"""Whether to go on from a running plan, and where to, migration cost included."""
