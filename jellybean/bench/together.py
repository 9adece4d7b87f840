"""Load on all workflows of a plan at the same time, each at the rate that it was planned for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

from jellybean.bench.bench import Load
from jellybean.bench.load_settings import DURATION_S, LoadSettings
from jellybean.bench.result import BenchResult
from jellybean.bench.target import no_progress
from jellybean.bench.window import Progress

if TYPE_CHECKING:
    from jellybean.documents import Project
    from jellybean.serving.endpoint import Endpoint


def bench_together(
    directory: Path,
    projects: Mapping[str, Project],
    *,
    duration_s: float = DURATION_S,
    rate_scales: Mapping[str, float] = {},
    seed: int = 0,
    progress: Progress = no_progress,
    endpoint: Endpoint | None = None,
) -> tuple[BenchResult, ...]:
    """Measure workflows that are served for the project in `directory`, or by `endpoint`, while all have their load.

    `projects`: by workflow. `rate_scales`: how many times its planned rate a workflow is offered; default 1. All
    warm up as long as the slowest of them needs, and begin together, so that what counts is measured at the same time.
    """
    loads = [Load.of(own, endpoint, directory, name, rate_scales.get(name, 1.0)) for name, own in projects.items()]
    warmup_s = max(load.target.warm_up_s for load in loads)
    settings = [load.settings(duration_s, warmup_s, workflow_seed(seed, load.workflow)) for load in loads]
    shown = [progress, *[no_progress] * (len(loads) - 1)]
    ready = Barrier(len(loads))

    def measure(load: Load, own: LoadSettings, advance: Progress) -> BenchResult:
        ready.wait()
        return load.measure(own, advance)

    with ThreadPoolExecutor(len(loads)) as pool, contextlib.ExitStack() as stack:
        stack.callback(ready.abort)
        running = [
            pool.submit(copy_context().run, measure, load, own, advance)
            for load, own, advance in zip(loads, settings, shown, strict=True)
        ]
        results = [one.result() for one in running]
    # Simulations would take the machine's time from a load, so they follow the last one.
    beside = {name: rate_scales.get(name, 1.0) for name in projects}
    return tuple(
        replace(load.compared(result, own, progress), seed=seed, beside=beside)
        for load, result, own in zip(loads, results, settings, strict=True)
    )


def workflow_seed(seed: int, workflow: str) -> int:
    """The seed of a workflow's load: with the same one, workflows of one rate would have the same arrival times."""
    return int.from_bytes(hashlib.sha256(f"{seed} {workflow}".encode()).digest()[:4], "big")
