"""Command profile: measure variants on this machine, or on workers that have joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import AllowPython, Directory, Json, Overrides, app, example, parse_allowed_python
from jellybean.cli.console import out, print_json, progress, say, warn
from jellybean.cli.times import MeasurementLimit, command_limit
from jellybean.documents import PROFILES_FILE, MultiWorkflowProject, Project, load_any_project, written_projects
from jellybean.errors import OutOfTimeError
from jellybean.folders import shell_text

if TYPE_CHECKING:
    from jellybean.profiler import Profiled, Scope, WorkerAgent


_Seconds = Annotated[float, typer.Option(min=0.05, max=86_400, help="Measurement time per point, in seconds.")]
_Fresh = Annotated[
    bool, typer.Option("--fresh", help="Measure everything, entries that were written by hand included.")
]
_Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="NAME",
        help="Measure only this worker type; if it has no speed, this machine is one. May be repeated.",
    ),
]
_Merge = Annotated[
    bool,
    typer.Option("--merge", help="With --type: measure only rows of the type, and leave the rest of the profiles."),
]
_On = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="WORKER", help="Measure a worker's type on the worker, through its agent. May be repeated."
    ),
]
_Peers = Annotated[
    Path | None,
    typer.Option("--peers", metavar="FILE", help="With --on: addresses of the workers; the run's by default."),
]
_Tls = Annotated[
    Path | None, typer.Option("--tls", metavar="FOLDER", help="With --on: an admin's certificate; DIR's by default.")
]
_Force = Annotated[bool, typer.Option("--force", help="With --on: measure workers even while they serve requests.")]


@app.command(
    epilog=example(
        "jellybean profile my-digits",
        "jellybean profile my-digits --fresh --seconds 1",
        "jellybean profile my-fleet --type jetson",
        "jellybean profile my-fleet --on camera-box-1 --on cloud-1",
    )
)
def profile(
    directory: Directory,
    overrides: Overrides = None,
    seconds: _Seconds = 1.0,
    fresh: _Fresh = False,
    types: _Types = None,
    merge: _Merge = False,
    on: _On = None,
    peers: _Peers = None,
    tls: _Tls = None,
    force: _Force = False,
    allow_python: AllowPython = None,
    time_limit: MeasurementLimit = None,
    json: Json = False,
) -> None:
    """Measure what is missing or stale in profiles.yaml: latency, memory, message sizes and accuracy of all variants.

    Worker types without a speed in infrastructure.yaml are measured only on a machine that --type says is one, or on
    the workers that --on names.
    """
    from jellybean.profiler import Scope, measurements, scope_on

    remote = _Remote(on or (), peers, tls, force)
    remote.check(types, merge=merge)
    allow = parse_allowed_python(allow_python)
    project = load_any_project(directory, overrides or (), profiles=False)
    parts = written_projects(project) if isinstance(project, MultiWorkflowProject) else {"profile": project}
    scope = Scope(fresh, tuple(types or ()), rows_only=merge)
    agents = {name: remote.agents(directory, part) for name, part in parts.items()}
    todos = {name: measurements(part, scope_on(agents[name], scope)) for name, part in parts.items()}
    files: list[dict[str, Any]] = []
    for name, part in parts.items():
        for line in todos[name].lines():
            say(line if len(parts) == 1 else f"{name}: {line}")
        with command_limit(time_limit):
            measured = _measured(name, part, scope, agents[name], seconds, allow)
        for note in measured.notes:
            warn(note)
        file = part.directory / PROFILES_FILE
        files.append({"workflow": part.workflow.name, "file": str(file), **measured.to_dict()})
        if not json:
            out.print(f"wrote {file}" if measured.written else f"{file} is current: nothing was measured")
    _say_next(directory, files if json else None)


def _measured(
    name: str, project: Project, scope: Scope, agents: Sequence[WorkerAgent], seconds: float, allow: frozenset[str]
) -> Profiled:
    """Measure one workflow's variants, with a bar. OutOfTimeError that says what is kept."""
    from jellybean.profiler import profile as measure

    kept = "finished measurements are kept: the same command goes on from there"
    if scope.fresh and (project.directory / PROFILES_FILE).exists():
        kept = (
            "finished measurements are kept, and the others as they were: the same command measures all of them again"
        )
    elif scope.fresh:
        kept = "finished measurements are kept: the same command, without --fresh, goes on from there"
    try:
        with progress(name, kept=kept) as advance:
            return measure(
                project, progress=advance, seconds_per_point=seconds, scope=scope, allow_python=allow, workers=agents
            )
    except OutOfTimeError as error:
        raise OutOfTimeError(f"{error}; {kept}") from error


def _say_next(directory: Path, files: Sequence[dict[str, Any]] | None) -> None:
    """Print the next command; as JSON with the `files` that were written, unless they are None."""
    if files is not None:
        print_json({"profiles": files, "next": f"jellybean plan {shell_text(directory)}"})
    else:
        out.print(f"next: jellybean plan {shell_text(directory)}", style="bold")


@dataclass(frozen=True, slots=True)
class _Remote:
    """The options about workers."""

    names: Sequence[str]
    peers: Path | None
    tls: Path | None
    force: bool

    def check(self, types: Sequence[str] | None, *, merge: bool) -> None:
        """BadParameter for options that do not go together."""
        if types and self.names:
            raise typer.BadParameter("--type and --on exclude each other: --on measures the types of its workers")
        if merge and not types:
            raise typer.BadParameter("--merge needs --type NAME: the type that this machine is one of")
        given = {"--peers": self.peers is not None, "--tls": self.tls is not None, "--force": self.force}
        for option in (option for option, is_given in given.items() if is_given and not self.names):
            raise typer.BadParameter(f"{option} belongs to --on WORKER")

    def agents(self, directory: Path, project: Project) -> list[WorkerAgent]:
        """The workers' agents, each asked for its machine. InputError if one cannot be measured."""
        from jellybean.profiler import WorkerAgent, remote_workers

        if not self.names:
            return []
        found = remote_workers(directory, project.infrastructure.workers, self.names, self.peers, self.tls)
        return [WorkerAgent(worker, force=self.force).describe() for worker in found]
