"""`--rate-scale` of `plan`: all sources' rates times a factor, as overrides that other commands take too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.documents import MultiWorkflowProject, load_any_project
from jellybean.quantities import RATE, format_quantity


def with_scaled_rates(directory: Path, overrides: Sequence[str], factor: float) -> list[str]:
    """The overrides, and `sources.NAME.rate` of every source times `factor`. DocumentError for invalid documents."""
    if factor == 1.0:
        return list(overrides)
    project = load_any_project(directory, overrides, profiles=False)
    parts = project.workflows if isinstance(project, MultiWorkflowProject) else {"": project}
    return [
        *overrides,
        *(
            f"{f'{workflow}.' * bool(workflow)}sources.{name}.rate={format_quantity(RATE, factor * source.rate_per_s)}"
            for workflow, part in parts.items()
            for name, source in part.workflow.sources.items()
        ),
    ]
