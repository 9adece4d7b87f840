"""Baselines: plans made by simple rules, for comparison with the solver's plan."""
