"""Load a project for a command, and say what its profiles no longer match."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from jellybean.cli.console import say, warn
from jellybean.display import formats
from jellybean.documents import (
    AnyProject,
    Project,
    load_any_project,
    load_project,
    machine_notes,
    override_options,
    request_graph,
    require_current,
    written_projects,
)
from jellybean.documents.layout import WORKFLOW_FILE, holds_several_workflows
from jellybean.documents.overrides import option_text
from jellybean.documents.provenance.noise import hop_noise
from jellybean.documents.provenance.own_device import never_measured
from jellybean.errors import DocumentError, JellyBeanError
from jellybean.folders import shell_text
from jellybean.planning.plan_file import PlanFile
from jellybean_solver import independent_streams_text


@contextmanager
def _options_or_those_of_plan(directory: Path, overrides: Sequence[str] | None) -> Iterator[Sequence[str]]:
    """The `--set` options of a command about DIR/plan.json: those given, or those that the plan was made for.

    The block loads the project with them. A DocumentError about an option that comes from the plan says so.
    """
    if overrides:
        yield overrides
        return
    file, without = PlanFile(directory), f"jellybean plan {shlex.quote(str(directory))}"
    options = file.overrides
    if options:
        say(f"{file.path} is the plan for{override_options(options)}; to plan without: {without}")
    with options_of_plan(options, f"{file.path} was made with this option; to plan without: {without}"):
        yield options


@contextmanager
def options_of_plan(options: Sequence[str], origin: str) -> Iterator[None]:
    """Add `origin`, where they come from, to a DocumentError about `--set` options that the user did not give."""
    try:
        yield
    except DocumentError as error:
        of_plan = {option_text(text) for text in options}
        if not any(problem.file in of_plan for problem in error.problems):
            raise
        problems = (
            replace(each, hint="; ".join(filter(None, (each.hint, origin)))) if each.file in of_plan else each
            for each in error.problems
        )
        raise DocumentError(problems) from error


def open_project(
    directory: Path, overrides: Sequence[str] | None, *, stale: bool, shows_times: bool = False
) -> Project:
    """Load a project of one workflow; warn about accepted stale profiles.

    `shows_times`: the command's figures depend on the profiles' times, so warn about times of other machines too.
    StaleProfilesError if its profiles are stale and that is not accepted.
    """
    project = load_project(directory, overrides or (), accept_stale=stale)
    require_current(project)
    _warn(project, shows_times=shows_times)
    return project


def open_any_project(
    directory: Path, overrides: Sequence[str] | None, *, stale: bool, shows_times: bool = False
) -> AnyProject:
    """`open_project` for one or several workflows."""
    project = load_any_project(directory, overrides or (), accept_stale=stale)
    require_current(project)
    _warn(project, shows_times=shows_times)
    return project


def open_planned_project(directory: Path, overrides: Sequence[str] | None, *, stale: bool) -> AnyProject:
    """`open_any_project` for commands about DIR/plan.json, with its options where none are given."""
    with _options_or_those_of_plan(directory, overrides) as options:
        return open_any_project(directory, options, stale=stale, shows_times=True)


def open_served_project(
    directory: Path, overrides: Sequence[str] | None, *, stale: bool, shows_times: bool = False
) -> AnyProject:
    """The same for commands that serve; sites that differ are refused, with what to set instead."""
    open_it = open_any_project if holds_several_workflows(directory) else open_project
    with _options_or_those_of_plan(directory, overrides) as options:
        return open_it(directory, options, stale=stale, shows_times=shows_times)


def _warn(project: AnyProject, *, shows_times: bool) -> None:
    warn_about_stale_profiles(project)
    if shows_times:
        warn_about_times(project)
        warn_about_figures(project)


def warn_about_stale_profiles(project: AnyProject) -> None:
    """Warn about the stale profiles that `--stale` accepts."""
    for part in written_projects(project).values():
        for entry in part.all_stale if part.accept_stale else ():
            warn(f"stale: {entry.problem}")


def warn_about_times(project: AnyProject) -> None:
    """Warn about times that were measured on other machines or a busy one, with the next step."""
    warn_about_hop(project)
    for part in written_projects(project).values():
        if notes := machine_notes(part):
            file, command = part.directory / "profiles.yaml", f"jellybean profile {shell_text(project.directory)}"
            warn(f"{file}: {'; '.join(notes)}; to measure them here: {command}")


def warn_about_figures(project: AnyProject) -> None:
    """Warn about figures of a workflow that its models or its profiles contradict."""
    for part in written_projects(project).values():
        for note in part.figure_notes:
            warn(f"{part.directory / WORKFLOW_FILE}: {note}")


def warn_about_hop(project: AnyProject) -> None:
    """Warn about a time of messages that was measured on a busy machine, as all predicted latencies contain it."""
    for part in written_projects(project).values():
        profiles = part.profiles
        if profiles is not None and profiles.hop is not None and (why := hop_noise(profiles)):
            file, command = part.directory / "profiles.yaml", f"jellybean profile {shell_text(project.directory)}"
            warn(
                f"{file}: hop {formats.duration(profiles.hop.time_s)}: {why}; predicted latencies contain it for "
                f"every message between processes; to measure it again on a quiet machine: {command}"
            )


def tell_never_measured(project: AnyProject) -> None:
    """Name the worker types that were never measured on their own device, and how they can be."""
    for part in written_projects(project).values():
        names = never_measured(part.workflow, part.infrastructure, part.profiles) if part.profiles is not None else ()
        if names:
            file = part.directory / "profiles.yaml"
            command = f"jellybean profile {shell_text(project.directory)} --fresh"
            say(
                f"{file}: never measured, but by hand or imported: {', '.join(names)}. To measure a type: `{command} "
                "--on WORKER`, a worker of it that has joined, or on such a machine `--type NAME --merge`, without --on"
            )


def unservable_reasons(project: AnyProject) -> dict[Path, str]:
    """Folder of a workflow that can be planned and simulated, but not served -> the reason."""
    reasons = {
        part.directory: independent_streams_text(request_graph(part)) for part in written_projects(project).values()
    }
    return {folder: reason for folder, reason in reasons.items() if reason}


def require_servable(project: AnyProject) -> None:
    """JellyBeanError if a workflow cannot be served, whatever the plan."""
    parts = {part.directory: name for name, part in written_projects(project).items()}
    for directory, reason in unservable_reasons(project).items():
        raise JellyBeanError(f"{parts.get(directory, directory)}: {reason}")


@contextmanager
def recorded_if_possible(what: str) -> Iterator[None]:
    """Record a result that may have taken long: where it cannot be, that is told, and the result is printed."""
    from jellybean.report.store import StoreError

    try:
        yield
    except StoreError as error:
        warn(f"{what} is not recorded, and no report has it: {error}")
