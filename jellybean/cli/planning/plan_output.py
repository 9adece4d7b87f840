"""Where `plan` writes: the project's plan and the report store, or for a what-if another file, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer

from jellybean.cli.app import checked_file
from jellybean.cli.console import errors, say
from jellybean.cli.current_plan import next_commands
from jellybean.cli.exit_status import EXIT_INFEASIBLE
from jellybean.cli.failures import text_of
from jellybean.display.terminal import BAD
from jellybean.documents import AnyProject
from jellybean.errors import InfeasibleError
from jellybean.folders import shell_text
from jellybean.planning.plan_file import PLAN_FILE, kept_plan, replaces_served_plan, write_plan_file
from jellybean.planning.planned import Planned
from jellybean.report.records import record_plan
from jellybean_solver import Plan, independent_streams_text


def refuse(planned: Planned, directory: Path) -> NoReturn:
    """Say why there is no plan, and end with the status of infeasible problems."""
    infeasible = InfeasibleError(planned.reasons, kept_plan(directory, outdated=True))
    errors.print(f"{planned.problem.name}: {text_of(infeasible)}", style=BAD, soft_wrap=True)
    raise typer.Exit(EXIT_INFEASIBLE)


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """The options of `plan` that say what it writes."""

    directory: Path
    overrides: list[str]
    dry_run: bool = False
    file: Path | None = None

    def check(self) -> None:
        """BadParameter if the options exclude each other or the file cannot be a plan file."""
        if self.file is None:
            return
        if self.dry_run:
            raise typer.BadParameter("--dry-run writes nothing: it cannot be combined with --out")
        if self.file.suffix != ".json":
            raise typer.BadParameter(f"--out {self.file}: a plan file's name ends with .json")
        checked_file("--out", self.file)
        if self.file.resolve() == (self.directory / PLAN_FILE).resolve():
            raise typer.BadParameter(
                f"--out {self.file}: this is the project's plan, which `plan` writes without --out"
            )

    @property
    def is_what_if(self) -> bool:
        """True if the project's plan, the report store and what is served stay as they are."""
        return self.dry_run or self.file is not None

    def save(
        self, project: AnyProject, document: dict[str, Any], planned: Planned | None, write: Callable[[], object]
    ) -> str:
        """Write the document of a plan; returns a warning, or an empty text.

        `write` writes it as the project's plan. `planned`: how it was found, for the report store; None: it was kept.
        """
        if self.file is not None:
            write_plan_file(self.file, document)
        if self.is_what_if:
            return ""
        note = replaces_served_plan(self.directory, document)
        write()
        record_plan(project, document, planned)
        return note

    def say_written(self, plan: Plan) -> None:
        """Say what was written and which commands may follow."""
        path = self.directory / PLAN_FILE
        if self.dry_run:
            say("dry run: nothing was written")
        elif self.file is not None:
            compare = f"jellybean diff {shell_text(self.directory)} {shell_text(self.file)}"
            say(f"wrote {self.file}; {path} is unchanged; compare: {compare}")
        else:
            say(f"wrote {path}; next: {next_commands(self.directory, plan)}")
            for reason in independent_streams_text(plan).splitlines():
                say(f"{plan.name}: {reason}")
