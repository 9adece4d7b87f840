"""The solver on generated fleets: time, gap and memory by size, one process per plan."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fleets_plot import Point, save_plot
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Picture, Result, Table, Topic

GAPS = {"shared": 1e-3, "exclusive": 1e-2}
LIMIT_S, P99_LIMIT_S, SITES_LIMIT_S = 20.0, 10.0, 5.0
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "fleets.svg"
METHOD = (
    "Generated workflows with 5 variants per operator and 4 batch sizes, one process per plan. "
    "`tests/plan_check.py`, which "
    "shares no code with the solver, checks each plan worker by worker."
)
REFERENCE = "the lower bound that the solver proves for the whole problem."
BINDS = "A limit binds if a plan without it is cheaper than the lower bound with it."


@dataclass(frozen=True)
class _Case:
    operators: int
    workers: int
    sharing: str
    p99: str = "0"  # the latency target, `5s`, or a share of the cheapest plan's p99; 0: none
    sites: int = 1  # identical ones at the edge, with half of the workers
    limits: bool = False  # whether to find out which limits bind, at the cost of two more plans


@dataclass(frozen=True)
class _Run:
    """Result of one process."""

    seconds: float
    megabytes: float
    gap: float
    cost_usd_per_h: float | None
    memory_binds: bool
    links_bind: bool
    p99_binds: bool
    complaints: int


SIZES = (
    *(_Case(operators, 10_000, "shared") for operators in (10, 20)),
    *(_Case(30, workers, "shared", limits=workers == 10_000) for workers in (1_000, 3_000, 10_000, 30_000, 100_000)),
    _Case(50, 10_000, "shared"),
    *(_Case(operators, 10_000, "exclusive") for operators in (10, 20)),
    *(_Case(30, workers, "exclusive", limits=workers == 10_000) for workers in (1_000, 3_000, 10_000, 30_000, 100_000)),
    _Case(50, 10_000, "exclusive"),
)
SMOKE = tuple(_Case(8, 200, sharing) for sharing in GAPS)


@benchmark
def fleets(smoke: bool) -> Result:
    """Time, gap and memory by numbers of operators and workers."""
    seeds = range(1 if smoke else 3)
    found = {case: [_run(case, seed) for seed in seeds] for case in (SMOKE if smoke else SIZES)}
    columns = [
        "operators",
        "workers",
        "sharing",
        "gap asked %",
        "gap % (worst)",
        "s (median)",
        "s (worst)",
        "MB (worst)",
    ]
    points = [_point(case, runs) for case, runs in found.items()]
    if not smoke:
        save_plot(points, PICTURE)
    return Result(
        title="Fleets: time, gap and memory by size",
        topic=Topic.PLANNING,
        method=f"{METHOD} 100 pools, {len(seeds)} seeds each, at most {LIMIT_S:g} s. {BINDS}",
        reference=REFERENCE,
        tables=(Table.of([*columns, "memory / links bind"], [_row(case, runs) for case, runs in found.items()]),),
        notes=(_violations(run for runs in found.values() for run in runs),),
        picture=Picture(PICTURE.name, "time by workers and by operators", [asdict(point) for point in points]),
    )


@benchmark
def fleets_sites(smoke: bool) -> Result:
    """A thousand identical sites, a p99 of 5 s, memory and narrow uplinks at once."""
    sites, seeds = (10, range(1)) if smoke else (1_000, range(8))
    operators, workers = (8, 200) if smoke else (30, 10_000)
    cases = [_Case(operators, workers, sharing, "5s", sites, limits=True) for sharing in GAPS]
    by_seed = {seed: [_run(case, seed) for case in cases] for seed in seeds}
    rows = [[str(seed), *(cell for run in runs for cell in _cells(run))] for seed, runs in by_seed.items()]
    titles = [f"{sharing}: gap % ({100 * gap:g} asked)" for sharing, gap in GAPS.items()]
    runs = [run for pair in by_seed.values() for run in pair]
    counts = [
        sum(flags) for flags in zip(*((run.p99_binds, run.links_bind, run.memory_binds) for run in runs), strict=True)
    ]
    return Result(
        title="Fleets with a thousand identical sites, a p99, memory and narrow uplinks at once",
        topic=Topic.PLANNING,
        method=f"{METHOD} {operators} operators, {workers:,} workers, half of them in {sites:,} sites, the others in "
        "the pools "
        f"of hub and cloud; a p99 of 5 s; at most {SITES_LIMIT_S:g} s, which the search may exceed by the end of its "
        "last "
        "program. A site's uplink carries the output of its first operators, so one more worker in each site is a "
        "whole "
        f"decision. {BINDS} A p99 binds if the cheapest plan misses it.",
        reference=REFERENCE,
        tables=(Table.of(["seed", *(cell for title in titles for cell in (title, "s", "binds"))], rows),),
        notes=(
            "Of {} fleets the p99 binds in {}, links in {}, memory in {}.".format(len(runs), *counts),
            f"Peak memory: {max(run.megabytes for run in runs):.0f} MB.",
            _violations(runs),
        ),
    )


@benchmark
def fleets_deadline(smoke: bool) -> Result:
    """A p99 that binds by queues at workers, which the lower bound does not model."""
    seeds, operators, workers = (range(1), 8, 200) if smoke else (range(3), 30, 10_000)
    cases = [_Case(operators, workers, sharing, p99="0.9") for sharing in GAPS]
    found: Mapping[_Case, list[_Run]] = {case: [_run(case, seed) for seed in seeds] for case in cases}
    rows = [
        [case.sharing, str(seed), f"{100 * GAPS[case.sharing]:g}", *_cells(run)[:2]]
        for case, runs in found.items()
        for seed, run in zip(seeds, runs, strict=True)
    ]
    return Result(
        title="Fleets with a p99 that binds by queueing",
        topic=Topic.PLANNING,
        method=f"{METHOD} {operators} operators, {workers:,} workers, no sites; the p99 asked is a tenth less than "
        "that of the "
        f"cheapest plan; at most {P99_LIMIT_S:g} s.",
        reference=f"{REFERENCE[:-1]}, which leaves queues out.",
        tables=(Table.of(["sharing", "seed", "gap asked %", "gap %", "s"], rows),),
        notes=(_violations(run for runs in found.values() for run in runs),),
    )


def _row(case: _Case, runs: Sequence[_Run]) -> list[str]:
    return [
        str(case.operators),
        f"{case.workers:,}",
        case.sharing,
        f"{100 * GAPS[case.sharing]:g}",
        f"{100 * max(run.gap for run in runs):.2f}",
        f"{statistics.median(run.seconds for run in runs):.1f}",
        f"{max(run.seconds for run in runs):.1f}",
        f"{max(run.megabytes for run in runs):.0f}",
        f"{sum(run.memory_binds for run in runs)} / {sum(run.links_bind for run in runs)}" if case.limits else "",
    ]


def _cells(run: _Run) -> list[str]:
    """Gap, seconds and the limits that bind."""
    flags = {"memory": run.memory_binds, "links": run.links_bind, "p99": run.p99_binds}
    gap = "no plan" if run.cost_usd_per_h is None else f"{100 * run.gap:.2f}"
    return [gap, f"{run.seconds:.1f}", ", ".join(name for name, binds in flags.items() if binds)]


def _violations(runs: Iterable[_Run]) -> str:
    planned = [run for run in runs if run.cost_usd_per_h is not None]
    return f"The independent check found {sum(run.complaints for run in planned)} violations in {len(planned)} plans."


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
