"""Where `plan` writes: the project's plan and the report store, or for a what-if another file, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from jellybean.cli.app import checked_file
from jellybean.cli.current_plan import next_commands
from jellybean.documents import AnyProject
from jellybean.folders import shell_text
from jellybean.planning.plan_file import PlanFile, write_plan_file
from jellybean.planning.planned import Planned
from jellybean.report.records import record_plan
from jellybean_solver import independent_streams_text


@dataclass(frozen=True, slots=True)
class Written:
    """What was written and which commands may follow, as lines; `warning`: what is served stays, or empty."""

    lines: tuple[str, ...]
    warning: str = ""


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """The options of `plan` that say what it writes. `own`: the project's plan; `other`: a file instead of it."""

    own: PlanFile
    dry_run: bool = False
    other: Path | None = None

    def check(self) -> None:
        """BadParameter if the options exclude each other or the file cannot be a plan file."""
        if self.other is None:
            return
        if self.dry_run:
            raise typer.BadParameter("--dry-run writes nothing: it cannot be combined with --out")
        if self.other.suffix != ".json":
            raise typer.BadParameter(f"--out {self.other}: a plan file's name ends with .json")
        checked_file("--out", self.other)
        if self.other.resolve() == self.own.path.resolve():
            raise typer.BadParameter(
                f"--out {self.other}: this is the project's plan, which `plan` writes without --out"
            )

    def write(self, project: AnyProject, planned: Planned) -> Written:
        """Write the plan that is to be served, if there is one."""
        document = planned.document
        if document is None:
            return Written(())
        if self.dry_run:
            return Written(("dry run: nothing was written",))
        if self.other is not None:
            write_plan_file(self.other, document)
            compare = f"jellybean diff {shell_text(self.own.directory)} {shell_text(self.other)}"
            return Written((f"wrote {self.other}; {self.own.path} is unchanged; compare: {compare}",))
        before, served = self.own.hash, self.own.replaces_served_text(document["hash"])
        self.own.write(planned)
        record_plan(project, document, planned if planned.is_new else None)
        lines = self._new_lines(planned) if planned.is_new else [_kept_text(self.own.path, before, document["hash"])]
        return Written(tuple(lines), served)

    def _new_lines(self, planned: Planned) -> Iterator[str]:
        if (plan := planned.plan) is not None:
            yield f"wrote {self.own.path}; next: {next_commands(self.own.directory, plan)}"
            yield from (f"{plan.name}: {reason}" for reason in independent_streams_text(plan).splitlines())


def _kept_text(path: Path, before: str | None, kept: str) -> str:
    """What keeping a plan did to the plan file. `before`: the hash of the plan that it had; None: of none."""
    if before == kept:
        return f"{path} is unchanged"
    other = "" if before is None else f"; it had another one, {before[:12]}"
    return f"wrote {path}: the plan that is kept, {kept[:12]}{other}"
