"""Measures the cost of one message between two processes (a hop), with real processes and an identity model.

A chain of operators, one per worker, serves requests at a low rate, in several rounds. The time of a hop in a round is
the median latency minus the models' busy time, divided by the number of messages. The least of the rounds counts, as
load of the machine only adds to it; their spread is its noise. Time in client and gateway is included, as in every
measurement.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from jellybean.bench.chain import SOURCE, chain
from jellybean.bench.heldout import HeldOut
from jellybean.bench.load import OK, due_times
from jellybean.bench.target import Target
from jellybean.serving.errors import ServingError
from jellybean.serving.local import launcher
from jellybean_solver import Arrivals, to_document

STAGES = 2
_RATE_PER_S = 25.0  # far below the capacity of the chain, so that nothing queues
_WARMUP_S = 1.0
ROUNDS = 5  # a busy second spoils one round of five, and the spread shows it


@dataclass(frozen=True, slots=True)
class HopTime:
    """Seconds of one message between two processes. `noise`: interquartile range of the rounds over their median."""

    seconds: float
    noise: float


@dataclass(frozen=True, slots=True)
class HopRound:
    """One round: seconds from the due time to the answer of each request, and mean busy seconds of the models."""

    latencies_s: Sequence[float]
    busy_s: float


def measure_hop(*, stages: int = STAGES, duration_s: float = 4.0, message_floats: int = 256) -> HopTime:
    """Time of a message between two processes of this machine, without links. Takes about `duration_s` + 3 s."""
    with tempfile.TemporaryDirectory(prefix="jellybean-hop-") as name:
        directory = Path(name)
        plan = chain("hop", [_identity_model(directory)] * stages, rate_per_s=_RATE_PER_S)
        running = launcher.up(directory, to_document(plan))
        try:
            data = HeldOut({SOURCE: np.ones((1, message_floats), np.float32)}, Arrivals.PERIODIC)
            return hop_time(asyncio.run(_rounds(Target.of(directory, data), duration_s / ROUNDS)), stages)
        finally:
            running.down()


def hop_time(rounds: Sequence[HopRound], stages: int) -> HopTime:
    """The least round's median latency minus busy time, divided by the `stages + 1` messages of a request.

    These are the message to the first stage, those between stages, and the answer.
    """
    busy_s = min(one.busy_s for one in rounds)
    hops_s = [max(0.0, statistics.median(one.latencies_s) - busy_s) / (stages + 1) for one in rounds]
    low, middle, high = np.quantile(hops_s, (0.25, 0.5, 0.75))
    return HopTime(min(hops_s), float((high - low) / middle) if middle > 0 else 0.0)


async def _rounds(target: Target, round_s: float) -> list[HopRound]:
    """The rounds, after one that warms up."""
    await _round(target, _WARMUP_S)
    return [await _round(target, round_s) for _ in range(ROUNDS)]


async def _round(target: Target, seconds: float) -> HopRound:
    due = due_times(_RATE_PER_S, seconds, Arrivals.PERIODIC, 0)
    before = (await target.meters.read()).busy
    samples = await target.offer(due, [0] * len(due), settle_s=5.0, end_s=0.0)
    after = (await target.meters.read()).busy
    busy_s = sum(after[worker].busy_s - before[worker].busy_s for worker in after) / len(samples)
    latencies_s = [sample.latency_s for sample in samples if sample.status == OK]
    if not latencies_s:
        why = f"{samples[0].status} {samples[0].reason}".rstrip()
        raise ServingError(f"the time of a message cannot be measured: {why}")
    return HopRound(latencies_s, busy_s)


def _identity_model(directory: Path) -> Path:
    """An ONNX model whose output is its input."""
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n", "size"]) for port in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = directory / "identity.onnx"
    path.write_bytes(model.SerializeToString())
    return path
