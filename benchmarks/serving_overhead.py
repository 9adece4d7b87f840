"""Serving overhead besides the model: one agent beside other servers, at concurrency 1, 8 and 32, 10 KB and 600 KB.

All servers are up and are measured in short slices, one after another, in an alternating order, so that other load on
the machine affects all alike. Ray Serve uses CPU while it is idle, so it is measured after the others. The tables have
medians of the slices.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import Connect, LoadError, LoadResult, SlowError, measure
from benchmarks.overhead.models import Case, cases, raw_s
from benchmarks.overhead.processes import UnavailableError
from benchmarks.overhead.servers import SERVERS, rival_versions

CLIENTS = (1, 8, 32)
ROUNDS, SLICE_S, WARMUP_S = 10, 0.5, 0.1
ALONE = "Ray Serve"
OVERHEAD, RATES = "Overhead of a request, by input", "Requests/s, by input and clients"
Cell = tuple[str, str, int]  # server, input, clients


@benchmark
def serving_overhead(smoke: bool) -> Result:
    """Overhead over raw onnxruntime at concurrency 1, and requests per second."""
    found: dict[Cell, list[LoadResult]] = defaultdict(list)
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="jellybean-models-") as folder:
        inputs = cases(Path(folder))
        raw = {case.label: raw_s(case, 100 if smoke else 2000) for case in inputs}
        for case in inputs:
            for names in ([name for name in SERVERS if name != ALONE], [ALONE]):
                _measure(names, case, smoke, found, missing)
    raw_times = ", ".join(f"{label}: {1e6 * seconds:.0f} us" for label, seconds in raw.items())
    return Result(
        title="What a request costs besides its model",
        topic=Topic.SERVING,
        method="All servers run the same model and are measured by the same closed-loop load generator over plain "
        "sockets, "
        f"in turn: medians of {1 if smoke else ROUNDS} alternating slices of {SLICE_S:g} s. Overhead is p50 at "
        "concurrency 1 "
        f"less the time of onnxruntime inside a process ({raw_times}). Agents run their models in a process of their "
        "own, as "
        "always.",
        reference="plain synchronous grpc, KServe's Python server, Ray Serve and mosec, installed from PyPI into "
        f"environments of their own ({', '.join(rival_versions())}): one worker, one thread of onnxruntime, "
        "settings in `benchmarks/overhead/rivals`. Ray Serve and mosec answer over HTTP.",
        tables=(_overhead(found, raw), _rates(found, list(raw)), _latency(found, list(raw))),
        notes=tuple(f"{name} is left out: {reason}" for name, reason in missing.items()),
    )


def _measure(
    names: list[str], case: Case, smoke: bool, found: dict[Cell, list[LoadResult]], missing: dict[str, str]
) -> None:
    with contextlib.ExitStack() as stack:
        up: dict[str, Connect] = {}
        for name in names:
            try:
                up[name] = stack.enter_context(SERVERS[name](case))
            except UnavailableError as error:
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


def _overhead(found: dict[Cell, list[LoadResult]], raw: dict[str, float]) -> Table:
    rows = []
    for name in _measured(found):
        row = [name]
        for label, raw_one_s in raw.items():
            seen = found.get((name, label, 1))
            row.append(f"{1e3 * (statistics.median(one.p50_s for one in seen) - raw_one_s):.2f}" if seen else "")
        rows.append(row)
    return Table.of(["server", *(f"{label} (ms)" for label in raw)], rows, OVERHEAD)


def _rates(found: dict[Cell, list[LoadResult]], labels: list[str]) -> Table:
    rows = []
    for name in _measured(found):
        row = [name]
        for label in labels:
            for clients in CLIENTS:
                seen = found.get((name, label, clients))
                row.append(f"{statistics.median(one.rate_per_s for one in seen):,.0f}" if seen else "")
        rows.append(row)
    return Table.of(["server", *(f"{label}: {clients}" for label in labels for clients in CLIENTS)], rows, RATES)


def _latency(found: dict[Cell, list[LoadResult]], labels: list[str]) -> Table:
    rows = []
    for name in _measured(found):
        row = [name]
        for label in labels:
            for clients in CLIENTS:
                seen = found.get((name, label, clients))
                row.append(_p50_and_p99_ms(seen) if seen else "")
        rows.append(row)
    header = ["server", *(f"{label}: {clients}" for label in labels for clients in CLIENTS)]
    return Table.of(header, rows, "p50 / p99 latency in ms, by input and clients")


def _p50_and_p99_ms(slices: list[LoadResult]) -> str:
    p50_s, p99_s = (
        statistics.median(figures) for figures in zip(*((one.p50_s, one.p99_s) for one in slices), strict=True)
    )
    return f"{1e3 * p50_s:.2f} / {1e3 * p99_s:.2f}"


def _measured(found: dict[Cell, list[LoadResult]]) -> list[str]:
    return [name for name in SERVERS if any(cell[0] == name for cell in found)]
