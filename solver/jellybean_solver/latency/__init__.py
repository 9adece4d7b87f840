"""The p99 latency of a plan in closed form: queues, batches, phase locking, and their sum along routes."""
