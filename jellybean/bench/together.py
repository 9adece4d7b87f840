"""Load on all workflows of a plan at the same time, each at the rate that it was planned for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.bench.bench import bench
from jellybean.bench.result import BenchResult
from jellybean.bench.target import DURATION_S, no_progress
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

    `projects`: by workflow. `rate_scales`: how many times its planned rate a workflow is offered; default 1.
    """
    measure = partial(bench, served_in=directory, duration_s=duration_s, seed=seed, endpoint=endpoint)
    with ThreadPoolExecutor(len(projects)) as pool:
        running = [
            pool.submit(
                measure,
                project,
                workflow=name,
                rate_scale=rate_scales.get(name, 1.0),
                progress=progress if number == 0 else no_progress,
            )
            for number, (name, project) in enumerate(projects.items())
        ]
        with contextlib.ExitStack() as stack:
            for one in running:
                stack.callback(one.cancel)
            return tuple(one.result() for one in running)
