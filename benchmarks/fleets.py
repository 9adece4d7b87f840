"""The solver on generated fleets: time, gap and memory by size, one process per plan."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.registry import benchmark, print_table


@dataclass(frozen=True)
class _Case:
    operators: int
    workers: int
    sharing: str
    gap: float
    limit_s: float
    p99: float = 0.0  # share of the cheapest plan's p99 latency that is asked for; 0: none


CASES = (
    _Case(30, 1_000, "shared", 1e-3, 20.0),
    _Case(30, 10_000, "shared", 1e-3, 20.0),
    _Case(50, 10_000, "shared", 1e-3, 20.0),
    _Case(30, 100_000, "shared", 1e-3, 20.0),
    _Case(30, 10_000, "exclusive", 1e-2, 20.0),
    _Case(30, 10_000, "shared", 1e-3, 60.0, p99=0.9),
)


@benchmark
def fleets(smoke: bool) -> None:
    """Every plan is checked per worker by `tests/plan_check.py`, which shares no code with the solver."""
    cases = (_Case(8, 200, "shared", 1e-3, 10.0), _Case(8, 200, "exclusive", 1e-2, 10.0)) if smoke else CASES
    seeds = range(1 if smoke else 3)
    rows = []
    for case in cases:
        found = [_run(case, seed) for seed in seeds]
        rows.append(
            [
                str(case.operators),
                f"{case.workers:,}",
                case.sharing,
                f"{case.p99:.0%}" if case.p99 else "",
                f"{statistics.median(one['seconds'] for one in found):.1f}",
                f"{max(one['seconds'] for one in found):.1f}",
                f"{100 * max(one['gap'] for one in found):.3f}",
                f"{max(one['megabytes'] for one in found):.0f}",
                f"{sum(one['memory_binds'] for one in found)} / {sum(one['links_bind'] for one in found)}",
                str(sum(one["complaints"] for one in found)),
            ]
        )
    print_table(
        f"fleets: operators x 5 variants on 100 pools, {len(seeds)} seeds each",
        [
            "operators",
            "workers",
            "sharing",
            "p99 asked",
            "s (median)",
            "s (worst)",
            "gap % (worst)",
            "MB (worst)",
            "memory / links bind",
            "complaints",
        ],
        rows,
    )


def _run(case: _Case, seed: int) -> dict[str, Any]:
    figures = (seed, case.operators, case.workers, case.sharing, case.gap, case.limit_s, case.p99)
    arguments = [str(figure) for figure in figures]
    command = [sys.executable, "-m", "benchmarks.fleet_run", *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found
