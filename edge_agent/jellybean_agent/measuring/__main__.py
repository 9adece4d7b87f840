"""A measuring process: reads its job (JSON) from stdin, and prints a line of JSON per measurement.

A fresh process, so that memory can be measured, and a model that crashes harms nobody. A line is
{"batch", "block", "seconds"}, {"memory_bytes", "device_memory_bytes"}, or {"fault", "reason"} as the last one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from jellybean_agent.errors import AgentError, ModelError, describe_error
from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.process_main import limit_memory
from jellybean_agent.measuring.job import Job, read_job
from jellybean_agent.measuring.memory_growth import memory_growth
from jellybean_agent.measuring.neighbours import busy_neighbours
from jellybean_agent.measuring.sample_file import read_sample_file
from jellybean_agent.measuring.timed_runs import WARM_UP_BELOW_S, WARM_UP_RUNS, Block, batched, timed_runs

_MEMORY_SAMPLE = 8  # sample inputs of which the first batch is made when memory is measured


def main() -> int:
    """Measure. Exit code: 0, or 1 after a fault."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a model or function prints is no answer
    job = read_job(json.load(sys.stdin))
    sys.path[:] = job.folders
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(job.memory_bytes)
    try:
        if job.memory:  # first, while the process is fresh
            _measure_memory(job, answers)
        if any(blocks for _, _, blocks in job.points):
            _time(job, answers)
    except MemoryError:
        _answer(answers, fault="model", reason=f"out of memory: {job.memory_bytes} bytes are the limit")
        return 1
    except AgentError as error:
        _answer(answers, fault="model" if isinstance(error, ModelError) else "run", reason=describe_error(error))
        return 1
    return 0


def _answer(answers: TextIO, **values: Any) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def _measure_memory(job: Job, answers: TextIO) -> None:
    sample = read_sample_file(Path(job.sample))[:_MEMORY_SAMPLE]
    batches = [batched(sample, batch)[0] for batch, _, _ in job.points]
    grown = memory_growth(job.code, job.sha256, job.upstreams, batches, job.on_device)
    _answer(answers, memory_bytes=grown.host_bytes, device_memory_bytes=grown.device_bytes)


def _time(job: Job, answers: TextIO) -> None:
    """Time the points block by block, round-robin, so that drift of the machine affects all batch sizes alike."""
    executor = Executor(job.code, job.sha256, job.upstreams, device=job.on_device)
    sample = read_sample_file(Path(job.sample))
    inputs = {batch: batched(sample, batch) for batch, _, _ in job.points}
    warm_up_runs = dict.fromkeys(inputs, 1)  # of a point's next block
    for number in sorted({block for _, _, blocks in job.points for block in blocks}):
        for batch, seconds, blocks in job.points:
            if number not in blocks:
                continue
            with busy_neighbours(job.code, job.sha256, job.upstreams, job.on_device, inputs[batch]):
                samples = timed_runs(executor, inputs[batch], Block(number, seconds, warm_up_runs[batch]))
            warm_up_runs[batch] = WARM_UP_RUNS if median(samples) < WARM_UP_BELOW_S else 0
            _answer(answers, batch=batch, block=number, seconds=samples)


if __name__ == "__main__":
    sys.exit(main())
