"""Loads and runs the models of the next plan while the worker serves the present one.

So it does not leave a plan that it serves for models that do not load.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jellybean_agent.brain.plan_view import PlanView, WorkerView
from jellybean_agent.errors import TransientError
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.system.memory import available_memory_bytes

LOG = logging.getLogger("jellybean.agent")
_PEAK_PER_FILE_BYTE = 3.5  # memory while a model is loaded; 3.1 to 3.3 were measured for files of 34 and 137 MiB


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """Tries models in a model process of its own. `pool`: None if models run in the agent's process: nothing is tried.

    `folder`: where files are linked under the plan's names; `allow_python`: functions that may run besides the
    built-in steps; `run_limit_s`: of a run; `left_bytes`: returns how much memory is left.
    """

    pool: ModelProcessPool | None
    folder: Path
    allow_python: frozenset[str]
    run_limit_s: float
    left_bytes: Callable[[], int] = available_memory_bytes

    async def __call__(self, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> None:
        """Load the worker's models and run each on zeros. ModelError names the operator whose model fails.

        `files`: path in the plan -> downloaded file. Where the models do not fit into memory beside those that are
        served, they are not tried, which is logged: they are loaded when the worker switches.
        """
        size_bytes = sum(path.stat().st_size for path in files.values())
        if (reason := self._why_not(size_bytes)) is not None:
            LOG.warning("the models of plan %s are not tried before the switch: %s", view.hash[:12], reason)
            return
        try:
            tried = await asyncio.to_thread(self._load, view, replace(worker, device_s=None), files)
        except TransientError as error:  # the pool has died: the agent ends, and is started again
            LOG.warning("the models of plan %s could not be tried: %s", view.hash[:12], error)
            return
        LOG.info("plan %s was tried: %s loaded and run", view.hash[:12], ", ".join(tried))

    def _why_not(self, size_bytes: int) -> str | None:
        """Why the models cannot be tried; None if they can."""
        if self.pool is None:
            return "models run in the agent's process (--in-process), which a crash would end"
        needed_mib, left_mib = _PEAK_PER_FILE_BYTE * size_bytes / 2**20, self.left_bytes() / 2**20
        if needed_mib <= left_mib:
            return None
        return (
            f"loading them takes {needed_mib:,.0f} MiB, and {left_mib:,.0f} MiB are left beside those that are served"
        )

    def _load(self, view: PlanView, worker: WorkerView, files: Mapping[str, Path]) -> tuple[str, ...]:
        """Load and run the models; returns the operators."""
        if self.pool is None:
            return ()
        process = ModelProcess(self.pool, run_limit_s=self.run_limit_s)
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self.folder) as root:
            for name, path in files.items():
                link = Path(root, name)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
            try:
                settings = ModelSettings(Path(root), process, self.allow_python)
                return tuple(load_executors(view, worker, settings))
            finally:
                process.close()
