"""A model's memory in service: growth of a process that loads and runs it.

The process must be a fresh one: in a used one, memory that its allocator holds already would hide the growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.session import OperatorCode
from jellybean_agent.measuring.timed_runs import Inputs
from jellybean_agent.system.device import Device
from jellybean_agent.system.memory import resident_bytes

RUNS = 3
MIN_BYTES = 4096  # size of one page: the smallest growth that is reported


def memory_growth(
    code: OperatorCode, sha256: str, upstreams: Mapping[str, str], batches: Sequence[Inputs], device: Device
) -> int:
    """Bytes by which this process grows when it loads a model and runs each of `batches`. AgentError if it fails."""
    before = resident_bytes()
    executor = Executor(code, sha256, upstreams, device=device)
    for inputs in batches:
        for _ in range(RUNS):
            executor.run(inputs)
    return max(MIN_BYTES, resident_bytes() - before)
