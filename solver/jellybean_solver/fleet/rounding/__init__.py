"""Rounding: integer worker counts near a relaxed point of one selection, by heuristics or by its exact MILP."""
