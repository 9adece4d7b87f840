"""Runs on an emulated device whose model is in a process, begun by an event loop: in a process that may fork.

python held_runs.py MODEL SHA256: prints as JSON what became of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jellybean_agent import AgentError, Executor
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.executor import RunResult
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.system.timers import Timer

ONES = np.ones((1, 2), np.float32)


@dataclass(frozen=True)
class EventLoopRuns:
    """Begins runs of the model in `process` from an event loop."""

    process: ModelProcess
    timer: Timer

    async def run(
        self, executor: Executor, runs: int, size: int = 1, *, kill: bool = False, late: bool = False
    ) -> Sequence[RunResult] | AgentError:
        """The results of some runs. The process gets them, and with `kill` or `late` cannot answer, or not in time."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[RunResult] | AgentError] = loop.create_future()
        inputs = [(np.repeat(ONES, size, axis=0),)] * runs
        assert self.process.pid
        if kill or late:
            os.kill(self.process.pid, signal.SIGSTOP)
        executor.run_async(inputs, answer.set_result, self.timer.call_at, size=size)
        if kill:
            os.kill(self.process.pid, signal.SIGKILL)
        elif late:
            loop.call_later(0.05, os.kill, self.process.pid, signal.SIGCONT)
        return await answer

    async def results(self, executor: Executor, runs: int, size: int = 1, *, late: bool = False) -> Sequence[RunResult]:
        """The results of runs that succeed."""
        answer = await self.run(executor, runs, size, late=late)
        assert not isinstance(answer, AgentError)
        return answer

    async def one_after_another(self, executor: Executor, runs: int) -> tuple[list[float], list[float], list[float]]:
        """Each run begins when the one before is over, as a driver has it.

        Per run: when the device was free after it, how late that was, and what was left of its time when it was told.
        """
        free: list[float] = []
        late: list[float] = []
        left: list[float] = []
        over = asyncio.Event()

        def done(results: Sequence[RunResult] | AgentError) -> None:
            assert executor.due_s is not None
            assert not isinstance(results, AgentError)
            free.append(executor.due_s)
            late.append(results[0].late_s)
            left.append(executor.due_s - time.perf_counter())
            executor.since_s = executor.due_s
            if len(left) < runs:
                executor.run_async([(ONES,)], done, self.timer.call_at)
            else:
                executor.since_s = None
                over.set()

        executor.run_async([(ONES,)], done, self.timer.call_at)
        await over.wait()
        return free, late, left


async def figures_of(process: ModelProcess, model: Path, sha256: str) -> dict[str, Any]:
    """What became of the runs: of one, of two at once, of a batch, of late ones and of one whose process is killed."""
    timer = Timer(asyncio.get_running_loop())
    timer.open()
    runs = EventLoopRuns(process, timer)
    slow = Executor(
        model, sha256, ("x",), batch=4, emulated=EmulatedDevice({1: 0.1, 4: 0.2}), open_session=process.open
    )
    began_s = time.monotonic()
    (one,) = await runs.results(slow, 1)
    two = await runs.results(slow, 2)
    (four,) = await runs.results(slow, 1, 4)
    assert slow.due_s is not None
    figures = {
        "took_s": time.monotonic() - began_s,
        "busy_s": [one.busy_s, two[0].busy_s, two[1].busy_s, four.busy_s],
        "late_s": [one.late_s, two[0].late_s, two[1].late_s, four.late_s],
        "output": one.outputs["y"].tolist(),
    }
    slow.since_s = slow.due_s  # it waited for the run before it
    due_s = slow.due_s + 0.1
    await asyncio.sleep(0.02)
    (following,) = await runs.results(slow, 1)
    figures["goes_on_s"], figures["goes_on_late_s"] = slow.due_s - due_s, following.late_s
    figures["one_after_another_s"] = await runs.one_after_another(slow, 4)
    quick = Executor(model, sha256, ("x",), emulated=EmulatedDevice({1: 1e-9}), open_session=process.open)
    (late,) = await runs.results(quick, 1, late=True)
    figures["late"] = late.late_s, late.busy_s
    figures["crash"] = str(await runs.run(slow, 1, kill=True))
    figures["can_run_async"] = slow.can_run_async
    timer.close()
    timer.call_at(0.0, lambda: None)  # of a driver that has ended
    return figures


if __name__ == "__main__":
    with ModelProcessPool() as pool:
        process = ModelProcess(pool)
        print(json.dumps(asyncio.run(figures_of(process, Path(sys.argv[1]), sys.argv[2]))))
        process.close()
