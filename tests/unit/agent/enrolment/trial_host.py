"""A trial of a model that does not end, cancelled while it runs, in a process that may fork: prints what is left.

python trial_host.py FOLDER: with plan.json and models/spin.onnx.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psutil

from jellybean_agent import read_plan
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.process.model_trial import ModelTrial


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for root in folder.glob("trial*") for path in root.rglob("*.onnx"))


async def cancelled_trial(folder: Path, pool: ModelProcessPool) -> dict[str, object]:
    view = read_plan(folder / "plan.json")
    trial = ModelTrial(pool, folder, 60.0)
    path = folder / "models/spin.onnx"
    task = asyncio.create_task(trial(view, view.workers["edge-1"], {"models/spin.onnx": path}))
    server = psutil.Process(pool.pid)
    while not any(child.cpu_times().user > 0.1 for child in server.children()):  # the model runs
        await asyncio.sleep(0.02)
    links = files(folder)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = [path.name for path in folder.glob("trial*")]
    return {"links": links, "cancelled": task.cancelled(), "processes": len(server.children()), "files": left}


if __name__ == "__main__":
    with ModelProcessPool() as pool:
        print(json.dumps(asyncio.run(cancelled_trial(Path(sys.argv[1]), pool))))
