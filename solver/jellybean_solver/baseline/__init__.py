"""Baselines: simple planning rules, each at its optimum, to compare a plan with."""
