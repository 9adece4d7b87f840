"""Tuned numbers of the exact worker assignment of one selection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AssignmentSettings:
    """Sizes of one pool up to which all ways to hold models are listed.

    Larger values prove optimality of larger problems, with programs that take longer. The properties in
    tests/property/solver/test_replan.py hold for every formulation.
    """

    largest_sets: int = 400  # maximal sets of models; above it, a family that covers every operator, without a bound
    enumeration_steps: int = 20_000  # of the search for those sets
    matching_sets: int = 256  # sets of models for the matching of workers, which needs more than the maximal ones
    matching_columns: int = 400  # columns of the matching worker by worker; above it, by sets
    matching_nodes: int = 2_000  # of branch and bound for the matching; more are not worth what they save


DEFAULT_ASSIGNMENT = AssignmentSettings()
