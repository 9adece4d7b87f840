"""Effort of the decomposition, and for which problems it is."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_solver.fleet.settings import DEFAULT_SETTINGS
from jellybean_solver.model.problem import Problem


@dataclass(frozen=True, slots=True)
class DecompositionSettings:
    """Effort of the search. Gaps and shares are relative."""

    threads: int = 2
    sample: int = 60  # workflows on which prices are found first
    sample_rounds: int = 12
    share: int = 100  # workflows, about, that are solved again between two choices of whole workers
    sample_part: float = 0.5  # of the time left, for them: the rest is for a plan of every workflow
    rounds: int = 8  # most times that all workflows are solved
    smoothing: float = 0.5  # first share of the best bound's prices in the next ones
    bolder: float = 0.1  # by which the share falls if the bound rises towards the master's prices
    warier: float = 0.5  # share of the rest by which it grows if the bound falls
    boldest: float = 0.1  # least share
    near: float = 0.25  # share of the gap: distance of the relaxed master to the bound at which rounds end
    progress: float = 0.1  # share of the gap: rounds that gain less end
    local_gap: float = 0.1  # share of the gap: of the solve of one workflow
    dearest: float = 2.0  # first limit on the price of a common worker, over what is paid for it
    dearest_whole: float = 10.0  # that limit where numbers of workers are fixed
    dearer: float = 1.5  # factor on that limit after each round in which the common capacity does not suffice
    dear: float = 20.0  # cost of not serving a workflow, over the highest cost of serving one
    packings: int = 8  # most choices of whole common workers
    few: int = 120  # workflows up to which all of them are solved again between choices
    few_packings: int = 60  # most choices then
    patience: int = 12  # choices in a row that gain little; a bound on whole numbers rises late
    integer_s: float = 20.0  # seconds: most of one solve of the integer master
    first_plan_s: float = 1.0  # seconds: for each such solve after the time limit, while there is no plan


def is_small(problem: Problem) -> bool:
    """True if one program of all workflows is solved to the end in seconds."""
    places = sum(len(variant.service) for operator in problem.operators for variant in operator.variants)
    return places <= DEFAULT_SETTINGS.middle_size


DEFAULT_DECOMPOSITION = DecompositionSettings()
