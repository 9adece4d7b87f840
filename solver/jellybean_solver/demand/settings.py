"""Tuned numbers of the exact worker assignment of one selection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AssignmentSettings:
    """Limits up to which all sets of models on workers of one pool are enumerated.

    Larger values prove optimality of larger problems, with programs that take longer to solve. The properties in
    tests/property/solver/test_replan.py hold for every formulation.
    """

    largest_sets: int = 400  # maximal sets of models; with more, only some are tried and no bound is proven
    enumeration_steps: int = 20_000  # steps of the enumeration of those sets
    matching_sets: int = 256  # sets of models (not only maximal ones) in the matching of running to planned workers
    matching_columns: int = 400  # columns up to which the matching treats workers one by one; with more, by their sets
    matching_nodes: int = 2_000  # branch-and-bound nodes of the matching; more save too little for their time


DEFAULT_ASSIGNMENT = AssignmentSettings()
