"""Tensor parallelism of stages: which weights are split, the rewrite of a stage's graph, parts of weights."""
