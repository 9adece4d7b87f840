"""What `parallel: auto` chooses, beside an exhaustive run of all candidates; links as they are and slowed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.training_runs.auto_cases import BATCH, FINALISTS, MICROBATCHES, MODELS, ROUNDS, WIDTH

PROCESSES, SLOW_MBIT_PER_S = (1, 2, 4), 100
_SLOW = (  # a namespace has its own loopback device; a token bucket shapes it, also for torch's all_reduce
    "ip link set lo up && tc qdisc add dev lo root tbf rate {rate}mbit burst 64kb latency 400ms && "
    'ip link set lo mtu 1500 && exec "$@"'
)
_COLUMNS = (
    *("model", "processes", "links", "candidates", "chosen", "batch (ms)", "best of all", "chosen / best"),
    *("slowest (ms)", "idle predicted", "idle measured"),
)


@benchmark
def schedule_auto(smoke: bool) -> Result:
    """The chosen candidate's time over that of the best of all, and its predicted idle time beside the measured one."""
    models = list(MODELS)[:1] if smoke else list(MODELS)
    links = [None, SLOW_MBIT_PER_S] if shutil.which("tc") and shutil.which("unshare") and not smoke else [None]
    counts = PROCESSES[:2] if smoke else PROCESSES
    cases = [
        (model, count, rate) for count in counts for rate in links[: len(links) if count > 1 else 1] for model in models
    ]
    rows = [_row(model, count, rate, _measured(model, count, rate)) for model, count, rate in cases]
    return Result(
        title="parallel: auto",
        topic=Topic.TRAINING,
        method=f"Batches of {BATCH} digits in {MICROBATCHES} micro-batches a replica; devices, replicas, tensor size "
        f"and schedule are free. The wide MLP has layers of {WIDTH}. After the choice, every candidate is measured "
        f"once; then the {FINALISTS} best, the best with each number of processes and the chosen one train {ROUNDS} "
        "iterations each in turn, in another order each round: medians. Then the chosen one trains: the median idle "
        f"time of its epochs. One thread a process; two cores{_priority()}. Slowed links: one loopback device of "
        f"{SLOW_MBIT_PER_S} Mbit/s for all processes, by the kernel's token bucket.",
        reference="the best of all candidates, measured.",
        tables=(Table.of(_COLUMNS, rows),),
        notes=(
            "Candidates: all that can be cut and split so; in brackets those with split layers. On one process there "
            "is one, and nothing is searched.",
        ),
    )


def _priority() -> str:
    """How the processes were kept from other work of the machine, where they were (`chrt -r 10`)."""
    real_time = os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)
    return ", processes at real-time priority, as the machine had other work too" if real_time else ""


def _measured(model: str, processes: int, rate: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "benchmarks.training_runs.exhaustive", model, str(processes), str(path)]
        if rate is not None:
            command = ["unshare", "-rn", "sh", "-c", _SLOW.format(rate=rate), "sh", *command]
        subprocess.run(command, check=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
        measured: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    print(json.dumps({"model": model, "processes": processes, "rate": rate, **measured}), file=sys.stderr, flush=True)
    return measured


def _row(model: str, processes: int, rate: int | None, measured: dict[str, Any]) -> tuple[str, ...]:
    candidates = f"{measured['candidates']} ({measured['split']})"
    return (
        *(model, str(processes), "as they are" if rate is None else f"{rate} Mbit/s", candidates, measured["chosen"]),
        *(f"{1e3 * measured['chosen_s']:.1f}", measured["best"], f"{measured['chosen_s'] / measured['best_s']:.2f}"),
        f"{1e3 * measured['worst_s']:.1f}",
        *(f"{measured['predicted_idle']:.0%}", f"{measured['idle']:.0%}"),
    )
