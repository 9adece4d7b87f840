"""Intra-operator parallelism: which dimension of each operator a device mesh splits, by an integer program (Alpa)."""
