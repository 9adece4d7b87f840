"""Cuts a layer graph into pipeline stages: one module per objective or topology, `partition` in front."""
