"""Training with parameter servers: processes that keep the weights, outside any process group (ADR 13)."""
