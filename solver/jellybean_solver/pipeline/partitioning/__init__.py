"""Partitions a layer graph into pipeline stages: one module per objective or topology, `partition` as the entry."""
