"""A model's memory in service: growth of a process that loads and runs it, and of what its device holds.

The process must be a fresh one: in a used one, memory that its allocator holds already would hide the growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.session import OperatorCode
from jellybean_agent.measuring.timed_runs import RunInputs
from jellybean_agent.system.device import Device
from jellybean_agent.system.device_memory import used_device_bytes
from jellybean_agent.system.memory import resident_bytes

RUNS = 3
MIN_BYTES = 4096  # size of one page: the smallest growth that is reported


class ModelMemory(NamedTuple):
    """Bytes of the host and of the device that a model takes; None: there is no such device, or it is not known."""

    host_bytes: float
    device_bytes: float | None = None


def memory_growth(
    code: OperatorCode, sha256: str, upstreams: Mapping[str, str], batches: Sequence[RunInputs], device: Device
) -> ModelMemory:
    """Growth of this process and of the device's used memory when a model is loaded and runs each of `batches`.

    The device must have no other work meanwhile. AgentError if the model fails.
    """
    before, device_before = resident_bytes(), used_device_bytes(device)
    executor = Executor(code, sha256, upstreams, device=device)
    for inputs in batches:
        for _ in range(RUNS):
            executor.run(inputs)
    grown = max(MIN_BYTES, resident_bytes() - before)
    device_after = used_device_bytes(device)
    if device_before is None or device_after is None or device_after <= device_before:
        return ModelMemory(grown)  # not known: another process has freed more than this one took
    return ModelMemory(grown, device_after - device_before)
