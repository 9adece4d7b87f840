"""What serving costs besides the model: one agent beside other servers, at concurrency 1, 8 and 32, 10 KB and 600 KB.

All servers are up (Ray Serve, which is busy when it is idle, has its turn after the others) and are asked in short
slices, one after another, in an order that changes: what else the machine does meets all alike. The table has medians
of the slices.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.overhead.load import Connect, LoadError, Measured, SlowError, measure
from benchmarks.overhead.models import Case, cases, raw_s
from benchmarks.overhead.servers import SERVERS, NotHereError
from benchmarks.registry import benchmark, print_table

CLIENTS = (1, 8, 32)
ROUNDS, SLICE_S, WARMUP_S = 10, 0.5, 0.1
ALONE = "Ray Serve"
Cell = tuple[str, str, int]  # server, input, clients


@benchmark
def serving_overhead(smoke: bool) -> None:
    """Overhead over raw onnxruntime at concurrency 1, and requests per second."""
    found: dict[Cell, list[Measured]] = defaultdict(list)
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="jellybean-models-") as folder:
        inputs = cases(Path(folder))
        raw = {case.label: raw_s(case, 100 if smoke else 2000) for case in inputs}
        for case in inputs:
            for names in ([name for name in SERVERS if name != ALONE], [ALONE]):
                _measure(names, case, smoke, found, missing)
    for name, reason in missing.items():
        print(f"\n{name} is left out: {reason}")
    _print(found, raw)


def _measure(
    names: list[str], case: Case, smoke: bool, found: dict[Cell, list[Measured]], missing: dict[str, str]
) -> None:
    with contextlib.ExitStack() as stack:
        up: dict[str, Connect] = {}
        for name in names:
            try:
                up[name] = stack.enter_context(SERVERS[name](case))
            except NotHereError as error:
                missing[name] = str(error)
        for number in range(1 if smoke else ROUNDS):
            for clients in CLIENTS:
                for name in sorted(up, reverse=bool(number % 2)):
                    try:
                        seen = measure(up[name], clients, 0.1 if smoke else SLICE_S, WARMUP_S)
                    except SlowError:
                        continue
                    except LoadError as error:
                        missing[name] = str(error)
                        del up[name]
                    else:
                        found[name, case.label, clients].append(seen)


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
