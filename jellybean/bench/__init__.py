"""Measures a served plan: load, held-out requests, sustained rate, the cost of a hop."""
