"""The exact MILP does not cut off optima: HiGHS does where its feasibility tolerance is as small as its own epsilon."""

from __future__ import annotations

import math

import pytest

from benchmarks.middle.problems import middle_problem
from jellybean_solver import Network
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.joint_lp import JointLp

SEED = 105  # at a tolerance of 1e-9 six of eight random seeds of HiGHS end "optimal" up to 0.2 % above the optimum
SELECTION = dict(zip((f"o{number}" for number in range(10)), "2033120132", strict=True))
OPTIMUM = 3.988176442  # USD/h, found and proven by a MILP of another formulation (benchmarks/middle/joint_milp.py)


@pytest.mark.slow
def test_a_selection_made_by_a_row_costs_what_it_costs() -> None:
    problem = middle_problem(SEED)
    joint_lp = JointLp(Network(problem), problem.accuracy_target, {})
    program = ExactMilp(joint_lp).program
    chosen = [
        column
        for (name, variant), column in zip(joint_lp.kinds.choices, joint_lp.chosen.tolist(), strict=True)
        if variant == f"v{SELECTION[name]}"
    ]
    row = program.add_rows(float(len(SELECTION)), math.inf, 1)
    program.fill([int(row[0])] * len(chosen), chosen, 1.0)
    assert program.solve().value == pytest.approx(OPTIMUM, rel=1e-6)
