"""The solver on generated fleets: time, gap and memory by size, one process per plan."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleets_plot import Point, save_plot
from benchmarks.registry import benchmark, print_table

GAPS = {"shared": 1e-3, "exclusive": 1e-2}
LIMIT_S, P99_LIMIT_S, SITES_LIMIT_S = 20.0, 10.0, 5.0
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "fleets.svg"


@dataclass(frozen=True)
class _Case:
    operators: int
    workers: int
    sharing: str
    p99: str = "0"  # the latency asked for, `5s`, or a share of the cheapest plan's; 0: none
    sites: int = 1  # alike ones at the edge, with half of the workers
    limits: bool = False  # whether to tell what binds: two plans more


@dataclass(frozen=True)
class _Run:
    """What one process found."""

    seconds: float
    megabytes: float
    gap: float
    cost_usd_per_h: float | None
    memory_binds: bool
    links_bind: bool
    p99_binds: bool
    complaints: int


CASES = (
    *(_Case(30, workers, sharing) for sharing in GAPS for workers in (1_000, 3_000)),
    *(_Case(30, 10_000, sharing, limits=True) for sharing in GAPS),
    *(_Case(30, workers, sharing) for sharing in GAPS for workers in (30_000, 100_000)),
    *(_Case(operators, 10_000, sharing) for sharing in GAPS for operators in (10, 20, 50)),
    *(_Case(30, 10_000, sharing, p99="0.9") for sharing in GAPS),
    *(_Case(30, 10_000, sharing, sites=1_000) for sharing in GAPS),
    *(_Case(30, 10_000, sharing, p99="5s", sites=1_000, limits=True) for sharing in GAPS),
)
SMOKE = tuple(_Case(8, 200, sharing) for sharing in GAPS)


@benchmark
def fleets(smoke: bool) -> None:
    """Every plan is checked per worker by `tests/plan_check.py`, which shares no code with the solver."""
    seeds = range(1 if smoke else 3)
    found = {case: [_run(case, seed) for seed in seeds] for case in (SMOKE if smoke else CASES)}
    print_table(
        f"fleets: operators x 5 variants x 4 batch sizes on 100 pools, {len(seeds)} seeds each, at most {LIMIT_S:g} s, "
        f"{P99_LIMIT_S:g} s with a p99, {SITES_LIMIT_S:g} s with sites",
        [
            "operators",
            "workers",
            "sharing",
            "p99 asked",
            "gap asked %",
            "gap % (worst)",
            "s (median)",
            "s (worst)",
            "MB (worst)",
            "memory / links bind",
            "p99 binds",
            "complaints",
        ],
        [_row(case, found[case]) for case in sorted(found, key=_place)],
    )
    if not smoke:
        save_plot([_point(case, runs) for case, runs in found.items() if case.p99 == "0" and case.sites == 1], PICTURE)
        print(f"\npicture: {PICTURE}")


def _place(case: _Case) -> tuple[object, ...]:
    return case.sites, case.sharing != "shared", case.p99, case.operators, case.workers


def _row(case: _Case, runs: Sequence[_Run]) -> list[str]:
    return [
        str(case.operators),
        f"{case.workers:,}" if case.sites == 1 else f"{case.workers:,} in {case.sites:,} sites",
        case.sharing,
        case.p99 if case.p99 != "0" else "",
        f"{100 * GAPS[case.sharing]:g}",
        f"{100 * max(run.gap for run in runs):.2f}",
        f"{statistics.median(run.seconds for run in runs):.1f}",
        f"{max(run.seconds for run in runs):.1f}",
        f"{max(run.megabytes for run in runs):.0f}",
        f"{sum(run.memory_binds for run in runs)} / {sum(run.links_bind for run in runs)}" if case.limits else "",
        f"{sum(run.p99_binds for run in runs)}" if case.p99 != "0" else "",
        str(sum(run.complaints for run in runs)),
    ]


def _point(case: _Case, runs: Sequence[_Run]) -> Point:
    missed = max(run.gap for run in runs) > GAPS[case.sharing] * (1 + 1e-6)
    return Point(case.operators, case.workers, case.sharing, tuple(sorted(run.seconds for run in runs)), missed)


def _run(case: _Case, seed: int) -> _Run:
    limit_s = SITES_LIMIT_S if case.sites > 1 else P99_LIMIT_S if case.p99 != "0" else LIMIT_S
    figures = (
        seed,
        case.operators,
        case.workers,
        case.sharing,
        GAPS[case.sharing],
        limit_s,
        case.p99,
        int(case.limits),
        case.sites,
        "wall",
    )
    command = [sys.executable, "-m", "benchmarks.fleet_run", *(str(figure) for figure in figures)]
    return _Run(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
