"""Measures a model's memory in service in a fresh process.

The process is spawned, because a fork is not safe once onnxruntime has threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

from jellybean.process_end import child_process
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.workload import Model
from jellybean_agent import CPU, AgentError, Device, ModelMemory, RunInput, memory_growth


def model_memory(
    model: Model, names: Mapping[str, str], batches: Sequence[tuple[RunInput, ...]], device: Device = CPU
) -> ModelMemory:
    """Growth of a fresh process and of the device's used memory when it loads `model` and runs `batches`.

    ProfileError if it dies.

    `names`: upstream -> input of the model.
    """
    with child_process() as pool:
        try:
            return pool.submit(memory_growth, *model.code, names, tuple(batches), device).result()
        except AgentError as error:
            raise ProfileError(f"operator {model.operator}, variant {model.variant}: {error}") from error
        except BrokenProcessPool as error:
            raise ProfileError(
                f"operator {model.operator}, variant {model.variant}: the process that loaded {model.code[0]} died; "
                "is there enough memory?"
            ) from error
