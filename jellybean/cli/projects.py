"""Load a project for a command, and say what its profiles no longer match."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.cli.console import warn
from jellybean.documents import (
    AnyProject,
    MultiWorkflowProject,
    Project,
    load_any_project,
    load_project,
    machine_notes,
    require_current,
)


def open_project(directory: Path, overrides: Sequence[str] | None, *, stale: bool) -> Project:
    """Load a project of one workflow; warn about accepted stale profiles and about times of other machines.

    StaleProfilesError if its profiles are stale and that is not accepted.
    """
    project = load_project(directory, overrides or (), accept_stale=stale)
    require_current(project)
    warn_about_profiles(project)
    return project


def open_any_project(directory: Path, overrides: Sequence[str] | None, *, stale: bool) -> AnyProject:
    """`open_project` for one or several workflows."""
    project = load_any_project(directory, overrides or (), accept_stale=stale)
    require_current(project)
    warn_about_profiles(project)
    return project


def warn_about_profiles(project: AnyProject) -> None:
    """Warn about stale profiles that `--stale` accepts, and about times that were measured on other machines."""
    for part in project.workflows.values() if isinstance(project, MultiWorkflowProject) else [project]:
        for entry in part.stale if part.accept_stale else ():
            warn(f"stale: {entry.problem}")
        for note in machine_notes(part):
            warn(f"{part.directory / 'profiles.yaml'}: {note}")
