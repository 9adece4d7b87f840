"""Measures the cost of one message between two processes (a hop), with real processes and an identity model.

A chain of operators, one per worker, serves requests at a low rate. The time of a hop is the median latency minus the
models' busy time, divided by the number of messages. Time in client and gateway is included, as in every measurement.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from jellybean.bench.chain import SOURCE, chain
from jellybean.bench.heldout import HeldOut
from jellybean.bench.load import OK, due_times
from jellybean.bench.target import Target
from jellybean.serving.local import launcher
from jellybean_solver import Arrivals, to_document

STAGES = 2
_RATE_PER_S = 25.0  # far below the capacity of the chain, so that nothing queues
_WARMUP_S = 1.0


def measure_hop_s(*, stages: int = STAGES, duration_s: float = 4.0, message_floats: int = 256) -> float:
    """Seconds per message between two processes of this machine, without links. Takes about `duration_s` + 3 s."""
    with tempfile.TemporaryDirectory(prefix="jellybean-hop-") as name:
        directory = Path(name)
        plan = chain("hop", [_identity_model(directory)] * stages, rate_per_s=_RATE_PER_S)
        running = launcher.up(directory, to_document(plan))
        try:
            data = HeldOut({SOURCE: np.ones((1, message_floats), np.float32)}, Arrivals.PERIODIC)
            return asyncio.run(_hop_s(Target.of(directory, data), stages, duration_s))
        finally:
            running.down()


async def _hop_s(target: Target, stages: int, duration_s: float) -> float:
    """Seconds per message: median latency minus busy time, divided by the `stages + 1` messages of a request.

    These are the message to the first stage, those between stages, and the answer.
    """
    due = due_times(_RATE_PER_S, _WARMUP_S + duration_s, Arrivals.PERIODIC, 0)
    before = (await target.meters.read()).busy
    samples = await target.offer(due, [0] * len(due), settle_s=5.0, end_s=0.0)
    after = (await target.meters.read()).busy
    busy_s = sum(after[worker].busy_s - before[worker].busy_s for worker in after) / len(samples)
    latencies = [sample.latency_s for sample in samples if sample.status == OK and sample.due_s >= _WARMUP_S]
    return max(0.0, statistics.median(latencies) - busy_s) / (stages + 1)


def _identity_model(directory: Path) -> Path:
    """An ONNX model whose output is its input."""
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n", "size"]) for port in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = directory / "identity.onnx"
    path.write_bytes(model.SerializeToString())
    return path
