"""A linear program that is solved in pieces, between which the clock is read."""

from __future__ import annotations

import math
import time

import pytest

from jellybean_solver import Clock
from jellybean_solver.milp import warm_lp
from jellybean_solver.milp.highs_program import Program
from jellybean_solver.milp.warm_lp import Linear


def test_a_solve_of_several_pieces_goes_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With presolve, HiGHS begins each piece anew, so a program of more iterations than a piece has is never solved."""
    monkeypatch.setattr(warm_lp, "AT_A_TIME", 3)
    program = Program()
    columns = [program.add_columns([1.0 + (7 * i + 3 * j) % 11 for j in range(12)]) for i in range(12)]
    for i in range(12):  # a transport problem
        program.row(-math.inf, 2.0 + i % 3, columns[i])
        program.row(1.0 + i % 2, math.inf, [int(row[i]) for row in columns])

    optimum = Linear(program, Clock(time.monotonic, time.monotonic() + 30.0)).solve()

    assert optimum is not None
    assert optimum.value == pytest.approx(program.solve(relaxed=True).value)
