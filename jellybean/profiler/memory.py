"""Measures a model's memory in service: growth of a fresh process that loads and runs it.

In a used process, memory that its allocator holds already would hide the growth. The process is spawned, because a fork
is not safe once onnxruntime has threads.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import psutil

from jellybean.profiler.errors import ProfileError
from jellybean.profiler.workload import Model
from jellybean_agent import CPU, AgentError, Device, Executor, OperatorCode, OperatorInput

RUNS = 3
MIN_BYTES = 4096  # size of one page: the smallest growth that is reported


def memory_bytes(
    model: Model, upstreams: Sequence[str], batches: Sequence[tuple[OperatorInput, ...]], device: Device = CPU
) -> float:
    """Bytes by which a fresh process grows when it loads `model` and runs `batches`. ProfileError if it dies."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            names = model.names.input_by_upstream(upstreams)
            grown = pool.submit(_growth, *model.code, names, tuple(batches), device).result()
        except AgentError as error:
            raise ProfileError(f"operator {model.operator}, variant {model.variant}: {error}") from error
        except BrokenProcessPool as error:
            raise ProfileError(
                f"operator {model.operator}, variant {model.variant}: the process that loaded {model.code[0]} died; "
                "is there enough memory?"
            ) from error
    return float(max(MIN_BYTES, grown))


def _growth(
    code: OperatorCode,
    sha256: str,
    upstreams: Mapping[str, str],
    batches: Sequence[tuple[OperatorInput, ...]],
    device: Device,
) -> int:
    process = psutil.Process()
    before = process.memory_info().rss
    executor = Executor(code, sha256, upstreams, device=device)
    for inputs in batches:
        for _ in range(RUNS):
            executor.run(inputs)
    return int(process.memory_info().rss - before)
