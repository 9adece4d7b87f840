"""`--rate-scale` of `plan`: all sources' rates times a factor, as overrides that other commands take too.

A source of streams has more of them, rather than faster ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.documents import MultiWorkflowProject, load_any_project
from jellybean.quantities import RATE, format_quantity


def with_scaled_rates(directory: Path, overrides: Sequence[str], factor: float) -> list[str]:
    """The overrides, and `sources.NAME.rate`, and `.streams`, times `factor`. DocumentError for invalid documents."""
    if factor == 1.0:
        return list(overrides)
    project = load_any_project(directory, overrides, profiles=False)
    parts = project.workflows if isinstance(project, MultiWorkflowProject) else {"": project}
    scaled = list(overrides)
    for workflow, part in parts.items():
        for name, source in part.workflow.sources.items():
            path = f"{f'{workflow}.' * bool(workflow)}sources.{name}"
            scaled.append(f"{path}.rate={format_quantity(RATE, factor * source.rate_per_s)}")
            if source.streams is not None:
                scaled.append(f"{path}.streams={max(1, round(factor * source.streams))}")
    return scaled
