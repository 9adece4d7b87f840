"""Times runs of one model as it is served: after a pause each, on changing inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.execution.executor import Executor
from jellybean_agent.tensors.stacking import OperatorInput, RunInput, stack_requests

Inputs = tuple[OperatorInput, ...]  # of one request: one per input edge
RunInputs = tuple[RunInput, ...]  # of one run
WARM_UP_RUNS = 2  # runs at the start of a block that are not counted, because another model ran before
WARM_UP_BELOW_S = 0.1  # models with longer runs warm up only before their first block
PAUSE_S = 0.003  # pause before each run
_MOST_PASSES = 4  # passes over the sample that its batches may take: more would fill the memory
_FEWEST_RUNS = 2  # minimum number of runs per block


@dataclass(frozen=True, slots=True)
class Block:
    """One of several short measurements of a model at a batch size. `number`: from 0; `seconds`: of timed runs.

    `warm_up_runs`: runs before it that are not counted.
    """

    number: int
    seconds: float
    warm_up_runs: int


def timed_runs(executor: Executor, inputs: Sequence[RunInputs], block: Block) -> list[float]:
    """Busy seconds of each run of a block. AgentError if the model fails.

    Blocks begin at inputs far apart, so that few runs of each are not all on the same inputs.
    """
    first = first_input(block.number, len(inputs))
    samples: list[float] = []
    for _ in range(block.warm_up_runs):
        executor.run(inputs[0])
    ends = time.perf_counter() + block.seconds
    while len(samples) < _FEWEST_RUNS or time.perf_counter() < ends:
        time.sleep(PAUSE_S)
        samples.append(executor.run(inputs[(first + len(samples)) % len(inputs)]).busy_s)
    return samples


def first_input(block: int, count: int) -> int:
    """Which of `count` inputs a block begins with: by the van der Corput sequence, at 0, 1/2, 1/4, 3/4, 1/8, ...

    Four blocks of equally many runs thus run every input equally often, give or take one.
    """
    share, digit = 0.0, 0.5
    while block:
        share += digit * (block % 2)
        block, digit = block // 2, digit / 2
    return int(share * count)


def batched(sample: Sequence[Inputs], batch: int) -> list[RunInputs]:
    """Batches of `batch` requests, stacked along axis 0; the sample repeats until every request is in as many batches.

    That takes at most `batch` passes over the sample; if it takes more than `_MOST_PASSES`, only the last batch is
    filled up with the first requests.

    InvalidInputError for inputs that cannot be stacked.
    """
    if batch == 1:
        return list(sample)
    passes = batch // math.gcd(batch, len(sample))
    total = len(sample) * (passes if passes <= _MOST_PASSES else 1)
    groups = [[sample[(first + offset) % len(sample)] for offset in range(batch)] for first in range(0, total, batch)]
    return [_stacked(group) for group in groups]


def _stacked(requests: Sequence[Inputs]) -> RunInputs:
    stacked = stack_requests(requests)
    if stacked is None:
        raise InvalidInputError("these inputs cannot be stacked into a batch: their tensors differ in size or type")
    return stacked
