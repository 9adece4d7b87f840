"""Programs as PuLP problems, which a solver that shares no code with HiGHS solves to the same optimum."""

from __future__ import annotations

import math
import random

import pulp
import pytest

from jellybean_solver import SolverError
from jellybean_solver.milp.highs_program import Program, SolveLimits
from jellybean_solver.milp.pulp_problem import pulp_problem, solve_with_pulp


def cover(seed: int) -> Program:
    """Whole workers of several prices that cover demands, with fractions that add up to 1."""
    rng, program = random.Random(seed), Program()
    counts = program.add_columns([rng.uniform(1, 5) for _ in range(6)], 9.0, integer=True)
    shares = program.add_columns([rng.uniform(0, 1) for _ in range(6)], 1.0)
    program.fill(program.add_rows(1.0, 1.0, 1).tolist() * 6, shares, 1.0)
    for row, count, share in zip(program.add_rows(-math.inf, 0.0, 6), counts, shares, strict=True):
        program.fill([row, row], [count, share], [-1.0, rng.uniform(2, 9)])
    program.fill(program.add_rows(2.0, 7.0, 1).tolist() * 6, counts, 1.0)
    return program


@pytest.mark.parametrize("seed", range(5))
def test_another_solver_finds_the_same_optimum(seed: int) -> None:
    program = cover(seed)
    problem = pulp_problem(program)
    with pytest.deprecated_call():  # the solver that comes with PuLP 3
        cbc = pulp.PULP_CBC_CMD(msg=False)
    problem.solve(cbc)
    assert pulp.LpStatus[problem.status] == "Optimal"
    by_highs = solve_with_pulp(program)
    assert pulp.value(problem.objective) == pytest.approx(by_highs.value, rel=1e-6)
    assert by_highs.value == pytest.approx(program.solve().value)
    assert by_highs.bound == pytest.approx(by_highs.value)


def test_a_cutoff_below_the_optimum_is_a_proof_that_nothing_is_there() -> None:
    program = cover(0)
    least = program.solve().value
    answer = solve_with_pulp(program, SolveLimits(cutoff=0.9 * least))
    assert answer.values is None or answer.value >= least * (1 - 1e-9)
    assert answer.bound >= 0.9 * least


def test_numbers_that_the_solver_does_not_take_are_said() -> None:
    program = Program()
    column = program.add_columns([1.0])
    program.fill(program.add_rows(1.0, math.inf, 1), column, 1e300)
    with pytest.raises(SolverError, match="check its unit"):
        solve_with_pulp(program)
