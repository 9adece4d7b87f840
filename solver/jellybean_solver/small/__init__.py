"""Solver for problems with few selections: beam search over selections, with an exact worker assignment for each."""
