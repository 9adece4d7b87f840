"""A signal stops HiGHS inside a program that it would not solve for days."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

STARTS = """
import random, signal, sys, threading, time
import numpy as np
from jellybean_solver.milp.highs_program import Program
from jellybean_solver import Deadline, EndToEnd, Slo, solve
from jellybean_solver.milp.interruptible_run import solver_threads
from jellybean_solver.outcome import Clock
from jellybean_solver.planning.mode_search import ModeSearch
from tests.support.small_problems import box, operator, problem, variant

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
draw = random.Random(1)
rows = [[draw.randrange(100) for _ in range(50)] for _ in range(6)]  # market split (Cornuejols, Dawande 1998)


def arrays():
    program = Program()
    columns = program.add_columns([0.0] * 50, 1.0, integer=True)
    slack = program.add_columns([1.0] * 12)
    for number, row in enumerate(rows):
        (at,) = program.add_rows(sum(row) // 2, sum(row) // 2, 1)
        program.fill([at] * 52, [*columns, *slack[2 * number : 2 * number + 2]], [*map(float, row), 1.0, -1.0])
    program.solve()


def pool():
    with solver_threads(2) as threads:
        for _ in threads.map(lambda _: arrays(), range(4)):
            pass


def descent():
    # The search of mixtures under a p99 target plans in threads.
    slo = Slo(mean_accuracy=90.0)
    step = operator("o", ["camera"], variant("low", {"box": 0.02}), variant("high", {"box": 0.1}))
    asked = problem(step, pools=[box(5)], accuracy=EndToEnd(("o",), {("low",): 80.0, ("high",): 95.0}), slo=slo)
    first = solve(asked).plan

    def propose(modes, below):
        arrays()
        return first

    ModeSearch(asked, propose, lambda plan: 1.0, Deadline(0.05), Clock()).run(first)


def announce():
    time.sleep(1.0)  # past presolve
    print("running", flush=True)


threading.Thread(target=announce, daemon=True).start()
try:
    {call}()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "number", "status"),
    [
        ("arrays", "SIGINT", 130),
        ("arrays", "SIGTERM", 143),
        ("pool", "SIGTERM", 143),
        ("pool", "SIGINT", 130),
        ("descent", "SIGINT", 130),
    ],
)
def test_a_signal_stops_a_solve(call: str, number: str, status: int) -> None:
    code = STARTS.replace("{call}", call)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            process.send_signal(getattr(signal, number))
            assert process.wait(timeout=30) == status
        finally:
            process.kill()
