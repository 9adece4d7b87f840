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
from pathlib import Path
from typing import Any

import numpy as np

from jellybean_agent.errors import AgentError
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.executor import Executor, RunResult
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.system.timers import Timer


async def ran(process: ModelProcess, model: Path, sha256: str) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    timer = Timer(loop)
    timer.open()
    ones = np.ones((1, 2), np.float32)

    async def run(executor: Executor, runs: int, size: int = 1, *, kill: bool = False, late: bool = False) -> Any:
        answer: asyncio.Future[Sequence[RunResult] | AgentError] = loop.create_future()
        inputs = [(np.repeat(ones, size, axis=0),)] * runs
        assert process.pid
        if kill or late:  # it gets the run, and no chance to answer, in time at least
            os.kill(process.pid, signal.SIGSTOP)
        executor.run_async(inputs, answer.set_result, timer.call_at, size=size)
        if kill:
            os.kill(process.pid, signal.SIGKILL)
        elif late:
            loop.call_later(0.05, os.kill, process.pid, signal.SIGCONT)
        return await answer

    async def one_after_another(runs: int) -> tuple[list[float], list[float], list[float]]:
        """Each begins when the one before is over, as a driver has it. When the device was free after each, how late
        that was, and what was left of its time when it was told.
        """
        free: list[float] = []
        late: list[float] = []
        left: list[float] = []
        over = asyncio.Event()

        def done(found: Sequence[RunResult] | AgentError) -> None:
            assert slow.due_s is not None
            assert not isinstance(found, AgentError)
            free.append(slow.due_s)
            late.append(found[0].late_s)
            left.append(slow.due_s - time.perf_counter())
            slow.since_s = slow.due_s
            if len(left) < runs:
                slow.run_async([(ones,)], done, timer.call_at)
            else:
                slow.since_s = None
                over.set()

        slow.run_async([(ones,)], done, timer.call_at)
        await over.wait()
        return free, late, left

    slow = Executor(
        model, sha256, ("x",), batch=4, emulated=EmulatedDevice({1: 0.1, 4: 0.2}), open_session=process.open
    )
    began_s = time.monotonic()
    (one,) = await run(slow, 1)
    two = await run(slow, 2)
    (four,) = await run(slow, 1, 4)
    assert slow.due_s is not None
    found = {
        "took_s": time.monotonic() - began_s,
        "busy_s": [one.busy_s, two[0].busy_s, two[1].busy_s, four.busy_s],
        "late_s": [one.late_s, two[0].late_s, two[1].late_s, four.late_s],
        "output": one.outputs["y"].tolist(),
    }
    slow.since_s = slow.due_s  # it waited for the run before it
    due_s = slow.due_s + 0.1
    await asyncio.sleep(0.02)
    (following,) = await run(slow, 1)
    found["goes_on_s"], found["goes_on_late_s"] = slow.due_s - due_s, following.late_s
    found["one_after_another_s"] = await one_after_another(4)
    quick = Executor(model, sha256, ("x",), emulated=EmulatedDevice({1: 1e-9}), open_session=process.open)
    (late,) = await run(quick, 1, late=True)
    found["late"] = late.late_s, late.busy_s
    found["crash"] = str(await run(slow, 1, kill=True))
    found["can_run_async"] = slow.can_run_async
    timer.close()
    timer.call_at(0.0, lambda: None)  # of a driver that has ended
    return found


if __name__ == "__main__":
    with ModelProcessPool() as pool:
        process = ModelProcess(pool)
        print(json.dumps(asyncio.run(ran(process, Path(sys.argv[1]), sys.argv[2]))))
        process.close()
