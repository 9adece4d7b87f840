"""`--rate-scale` of `plan`: all sources' rates times a factor, as overrides that other commands take too.

A source of streams has more of them, rather than faster ones. Rates that sites state in a file cannot be overridden.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.documents import MultiWorkflowProject, Project, load_any_project
from jellybean.errors import InputError
from jellybean.quantities import RATE, format_quantity


def with_scaled_rates(directory: Path, overrides: Sequence[str], factor: float) -> list[str]:
    """The overrides, and `sources.NAME.rate`, and `.streams`, times `factor`. DocumentError for invalid documents.

    InputError if sites state rates of their own.
    """
    if factor == 1.0:
        return list(overrides)
    project = load_any_project(directory, overrides, profiles=False)
    parts = {"": project} if isinstance(project, Project) else project.workflows
    if isinstance(project, MultiWorkflowProject) and project.written:
        parts = project.written
        _require_common_rates(next(iter(parts.values())))
    scaled = list(overrides)
    for workflow, part in parts.items():
        for name, source in part.workflow.sources.items():
            path = f"{f'{workflow}.' * bool(workflow)}sources.{name}"
            scaled.append(f"{path}.rate={format_quantity(RATE, factor * source.rate_per_s)}")
            if source.streams is not None:
                scaled.append(f"{path}.streams={max(1, round(factor * source.streams))}")
    return scaled


def _require_common_rates(project: Project) -> None:
    """InputError if the rates of sites that differ are in their file, where no option changes them."""
    table = project.site_table
    stated = sorted({name for site in table.sites for name in site.values if name.endswith(".rate")}) if table else []
    if table is not None and stated:
        raise InputError(f"--rate-scale: {table.file} states {', '.join(stated)} of its sites; change the rates there")
