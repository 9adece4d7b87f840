"""The benchmark's plain joint MILP and the solver prove the same optimum on small problems with every feature.

Neither shares search code with the other. HiGHS has one number of threads per process, which the solver sets to 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.middle.features import features
from benchmarks.middle.joint_milp import solve_milp
from benchmarks.middle.one import run_milp, run_solver
from benchmarks.middle.problems import MIDDLE, SMALL, middle_problem
from jellybean_solver import Problem
from tests.support.examples import examples

SEEDS = range(examples(120, nightly=1000))
AT_ONCE = 20  # seeds in one test


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_both_prove_the_same_optimum(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        problem = middle_problem(seed, SMALL)
        solver, milp = run_solver(problem, math.inf), run_milp(problem, math.inf, threads=1)
        assert (solver.status, solver.error) == (milp.status, ""), seed
        assert solver.complaints == milp.complaints == (), seed
        if milp.value is not None:
            assert solver.value == pytest.approx(milp.value, rel=1e-6, abs=1e-6), seed


def test_a_plan_cheaper_than_the_optimum_is_impossible_for_the_milp() -> None:
    """A budget a little below the optimum leaves no plan, one a little above leaves the optimum."""
    problem = middle_problem(5, SMALL)
    optimum = solve_milp(problem, threads=1).value
    assert optimum is not None
    assert solve_milp(_with_budget(problem, optimum * 0.999), threads=1).status == "infeasible"
    assert solve_milp(_with_budget(problem, optimum * 1.001), threads=1).value == pytest.approx(optimum, rel=1e-6)


def _with_budget(problem: Problem, usd_per_h: float) -> Problem:
    return replace(problem, slo=replace(problem.slo, budget_usd_per_h=usd_per_h))


def test_seeds_are_reproducible_and_cover_every_feature() -> None:
    assert middle_problem(3) == middle_problem(3)
    problems = [middle_problem(seed) for seed in range(60)]
    said = [features(problem).split() for problem in problems]
    assert set("".join(letters for letters, _ in said)) == set("MLBFVSRCWU")
    assert {modes[0] for _, modes in said} == set("sxm")
    assert {modes[1] for _, modes in said} == set("ipew-")
    assert all(MIDDLE.operators[0] <= len(problem.operators) <= MIDDLE.operators[1] for problem in problems)
    assert all(MIDDLE.pools[0] <= len(problem.pools) <= MIDDLE.pools[1] for problem in problems)
