"""A plan on this machine: one process per worker, restarted when it dies, replaced under load."""
