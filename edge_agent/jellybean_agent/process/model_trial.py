"""Loads and runs the models of the next plan while the worker serves the present one.

So it does not leave a plan that it serves for models that do not load.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean_agent.brain.plan_view import OperatorView, PlanView, WorkerView
from jellybean_agent.errors import TransientError
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.execution.providers import require_provider
from jellybean_agent.execution.python_code import is_builtin
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.system.memory import available_memory_bytes

LOG = logging.getLogger("jellybean.agent")
_PEAK_PER_FILE_BYTE = 3.5  # memory while a model is loaded; 3.1 to 3.3 were measured for files of 34 and 137 MiB
_FOLDER = "trial"
_END_S = 0.05  # between two looks whether a trial that was cancelled has ended


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """Tries models in a model process of its own. `pool`: None if models run in the agent's process: nothing is tried.

    `folder`: where files are linked under the plan's names; `run_limit_s`: of a run; `left_bytes`: returns how much
    memory is left. What is tried harms nothing that is served: models on the CPU, and built-in steps. A model on
    another device could take the memory that those served there need, and a function of the owner could need what the
    present plan's holds, such as a camera.
    """

    pool: ModelProcessPool | None
    folder: Path
    run_limit_s: float
    left_bytes: Callable[[], int] = available_memory_bytes

    async def __call__(self, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> None:
        """Load the worker's models and run each on zeros. ModelError names the operator whose model fails.

        `files`: path in the plan -> downloaded file. What is not tried is logged, with the reason: it is loaded when
        the worker switches. If this is cancelled, the model process is killed, and its thread has ended.
        """
        require_provider(worker.device)
        names = tuple(name for name in worker.operators if _is_harmless(view.operators[name]))
        if left_out := [name for name in worker.operators if name not in names]:
            LOG.info("not tried before the switch, as they run functions of this machine: %s", ", ".join(left_out))
        tried = replace(worker, operators=names, device_s=None)
        size_bytes = sum(path.stat().st_size for path in files.values())
        if (reason := self._skip_reason(tried, size_bytes)) is not None:
            LOG.warning("the models of plan %s are not tried before the switch: %s", view.hash[:12], reason)
        elif self.pool is not None and names:
            await self._try(self.pool, view, tried, files)

    def remove_files(self) -> None:
        """Remove what a trial left here that was killed. No trial may be under way."""
        for folder in self.folder.glob(f"{_FOLDER}*"):  # earlier versions gave each trial a name
            shutil.rmtree(folder, ignore_errors=True)

    def _skip_reason(self, worker: WorkerView, size_bytes: int) -> str | None:
        """Why the models cannot be tried; None if they can."""
        if self.pool is None:
            return "models run in the agent's process (--in-process), which a crash would end"
        if not worker.device.is_cpu:
            return f"its device {worker.device} has the models that are served, and might have no memory for both"
        needed_mib, left_mib = _PEAK_PER_FILE_BYTE * size_bytes / 2**20, self.left_bytes() / 2**20
        if needed_mib <= left_mib:
            return None
        return (
            f"loading them takes {needed_mib:,.0f} MiB, and {left_mib:,.0f} MiB are left beside those that are served"
        )

    async def _try(self, pool: ModelProcessPool, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> None:
        process = ModelProcess(pool, run_limit_s=self.run_limit_s)
        loading = asyncio.create_task(asyncio.to_thread(self._load, process, view, worker, files))
        try:
            await asyncio.shield(loading)
        except TransientError as error:  # the pool has died: the agent ends, and is started again
            LOG.warning("the models of plan %s could not be tried: %s", view.hash[:12], error)
        except asyncio.CancelledError:
            while not loading.done():  # its thread may be about to start the process
                if process.pid:
                    await asyncio.to_thread(pool.end_process, process.pid)
                await asyncio.wait([loading], timeout=_END_S)
            await asyncio.gather(loading, return_exceptions=True)
            raise
        else:
            LOG.info("plan %s was tried: %s loaded and run", view.hash[:12], ", ".join(worker.operators))

    def _load(self, process: ModelProcess, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> None:
        """Load and run the models. In a thread of its own."""
        self.remove_files()
        root = self.folder / _FOLDER
        try:
            for name, path in files.items():
                link = root / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
            load_executors(view, worker, ModelSettings(root, process))
        finally:
            process.close()
            self.remove_files()


def _is_harmless(operator: OperatorView) -> bool:
    """True for models, and for steps of the agent's own."""
    return operator.python is None or is_builtin(operator.python.function)
