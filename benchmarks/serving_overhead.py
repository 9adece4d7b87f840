"""What serving costs besides the model: one agent beside other servers, at concurrency 1, 8 and 32, 10 KB and 600 KB.

Every round starts each server alone, asks it in every cell, and stops it; the table has medians over the rounds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.overhead.load import LoadError, Measured, measure
from benchmarks.overhead.models import Case, cases, raw_s
from benchmarks.overhead.servers import SERVERS, NotHereError
from benchmarks.registry import benchmark, print_table

CLIENTS = (1, 8, 32)
ROUNDS, DURATION_S, WARMUP_S = 3, 1.5, 0.3
Cell = tuple[str, str, int]  # server, input, clients


@benchmark
def serving_overhead(smoke: bool) -> None:
    """Overhead over raw onnxruntime at concurrency 1, and requests per second."""
    found: dict[Cell, list[Measured]] = defaultdict(list)
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="jellybean-models-") as folder:
        inputs = cases(Path(folder))
        raw = {case.label: raw_s(case, 100 if smoke else 2000) for case in inputs}
        for number in range(1 if smoke else ROUNDS):
            for name in sorted(SERVERS, reverse=bool(number % 2)):
                for case in inputs:
                    if name not in missing:
                        _measure(name, case, 0.2 if smoke else DURATION_S, found, missing)
    for name, reason in missing.items():
        print(f"\n{name} is left out: {reason}")
    _print(found, raw)


def _measure(
    name: str, case: Case, duration_s: float, found: dict[Cell, list[Measured]], missing: dict[str, str]
) -> None:
    try:
        with SERVERS[name](case) as connect:
            for clients in CLIENTS:
                found[name, case.label, clients].append(measure(connect, clients, duration_s, WARMUP_S))
    except (NotHereError, LoadError) as error:
        missing[name] = str(error)


def _print(found: dict[Cell, list[Measured]], raw: dict[str, float]) -> None:
    names = [name for name in SERVERS if any(cell[0] == name for cell in found)]
    rows = []
    for name in names:
        row = [name]
        for label, raw_one_s in raw.items():
            seen = found.get((name, label, 1))
            row.append(f"{1e3 * (statistics.median(one.p50_s for one in seen) - raw_one_s):.2f}" if seen else "")
        for label in raw:
            for clients in CLIENTS:
                seen = found.get((name, label, clients))
                row.append(f"{statistics.median(one.rate_per_s for one in seen):,.0f}" if seen else "")
        rows.append(row)
    overheads = [f"overhead ms, {label}" for label in raw]
    rates = [f"{label}: {clients}" for label in raw for clients in CLIENTS]
    limits = ", ".join(f"{label} {1e6 * seconds:.0f} us" for label, seconds in raw.items())
    print_table(
        f"Overhead over onnxruntime in process ({limits}), p50 at concurrency 1; requests/s at concurrency 1, 8, 32",
        ["server", *overheads, *rates],
        rows,
    )
    _print_p99(found, names, list(raw))


def _print_p99(found: dict[Cell, list[Measured]], names: list[str], labels: list[str]) -> None:
    rows = []
    for name in names:
        cells = [found.get((name, label, clients)) for label in labels for clients in CLIENTS]
        rows.append(
            [name]
            + [
                f"{1e3 * statistics.median(one.p50_s for one in seen):.2f} / "
                f"{1e3 * statistics.median(one.p99_s for one in seen):.2f}"
                if seen
                else ""
                for seen in cells
            ]
        )
    header = ["server", *(f"{label}: {clients}" for label in labels for clients in CLIENTS)]
    print_table("The same: p50 / p99, ms", header, rows)
