"""Whole workers near a relaxed point of one selection, by heuristics or by its exact MILP."""
