"""Questions about a project, each a run of the command line in this process."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jellybean.cli import run as jellybean
from jellybean.cli.exit_status import EXIT_INFEASIBLE
from tests.matrix.documents import write
from tests.matrix.draft import Draft, scaled
from tests.matrix.features import several_workflows

PLANNED, INFEASIBLE, REFUSED, LATE, ERROR = "planned", "infeasible", "REFUSED", "out of time", "ERROR"
LIMIT_S = 6.0  # of each command
TRACE = (0.4, 1.0, 0.7)  # times the rates of the documents, an hour each


@dataclass(frozen=True)
class Answer:
    """`status`: one of the constants above. `found`: what the last command printed as JSON."""

    status: str
    message: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Unanswered(Exception):
    """A command gave no plan."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


@dataclass(frozen=True)
class Run:
    """Runs commands on projects in a folder; each has so many seconds."""

    folder: Path
    limit_s: float

    def __call__(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json; what it printed. Unanswered if there is no plan, or a message or a traceback."""
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = jellybean([*arguments, "--json", "--time-limit", f"{self.limit_s:g}s"])
        except Exception:  # noqa: BLE001  (a traceback is what is looked for)
            raise Unanswered(Answer(ERROR, traceback.format_exc())) from None
        text = out.getvalue()
        found = json.loads(text) if text.strip() else {}
        if status == 0:
            return found
        error = found.get("error", {})
        kind, message = error.get("kind", ""), error.get("message", err.getvalue())
        if status == EXIT_INFEASIBLE:
            raise Unanswered(Answer(INFEASIBLE, message, found))
        statuses = {"time_limit": LATE, "documents": REFUSED, "usage": REFUSED, "input": REFUSED, "failure": REFUSED}
        raise Unanswered(Answer(statuses.get(kind, ERROR), message, found))


def plan(draft: Draft, run: Run) -> dict[str, Any]:
    return run("plan", str(write(draft, run.folder / "p")))


def replan(draft: Draft, run: Run) -> dict[str, Any]:
    """`plan --from` a plan for six tenths of the rates, where it costs something to start a model."""
    draft.start_usd = draft.rng.choice((0.0, 0.05, 0.5, 2.0))
    file = str(run.folder / "before.json")
    run("plan", str(write(scaled(draft, 0.6), run.folder / "b")), "--out", file)
    project = str(write(draft, run.folder / "p"))
    found = run("plan", project, "--from", file, "--horizon", "24h", "--dry-run")
    return {**found, "before": json.loads(Path(file).read_text(encoding="utf-8"))}


def add(draft: Draft, run: Run) -> dict[str, Any]:
    """`plan --add` of the last workflow or site."""
    if not draft.rows:
        several_workflows(draft)
        draft.workflows[-1].objective = draft.workflows[0].objective
    before = draft.without_last()
    project, file = str(write(draft, run.folder / "p")), str(run.folder / "before.json")
    if draft.is_several:  # one workflow in workflows/ is also a project of several
        earlier = run.folder / "b"
        write(draft, earlier)
        _remove(earlier / "workflows" / draft.workflows[-1].name)
    else:
        earlier = write(before, run.folder / "b")
    run("plan", str(earlier), "--out", file)
    return run("plan", project, "--add", "--from", file, "--dry-run")


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def calendar(draft: Draft, run: Run) -> dict[str, Any]:
    trace, lines = run.folder / "trace.csv", ["time_s,source,rate_per_s"]
    for number, factor in enumerate(TRACE):
        lines += [f"{3600 * number},{name},{factor * rate:.6g}" for name, rate in sorted(_rates(draft).items())]
    project = str(write(draft, run.folder / "p"))
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run("calendar", project, str(trace), "--periods", "3")


def _rates(draft: Draft) -> dict[str, float]:
    """Rates by the names that sources have in a plan."""
    found = {}
    for workflow in draft.workflows:
        for source in workflow.sources:
            own = f"{workflow.name}/{source.name}" if draft.is_several else source.name
            if not draft.rows:
                found[own] = source.rate_per_s
            for row in draft.rows:
                stated = row.rate_per_s if source.name == "camera" else None
                if workflow is not draft.workflows[0]:
                    stated = None
                name = f"{workflow.name}@{row.name}/{source.name}" if draft.is_several else f"{row.name}/{own}"
                found[name] = source.rate_per_s if stated is None else stated
    return found


def frontier(draft: Draft, run: Run) -> dict[str, Any]:
    return run("frontier", str(write(draft, run.folder / "p")), "--points", "3")


def _frontier_of(pair: str) -> Callable[[Draft, Run], dict[str, Any]]:
    def ask(draft: Draft, run: Run) -> dict[str, Any]:
        project = str(write(draft, run.folder / "p"))
        return run("frontier", project, "--of", pair, "--points", "3")

    return ask


def explain(draft: Draft, run: Run) -> dict[str, Any]:
    return run("explain", str(write(draft, run.folder / "p")))


def simulate(draft: Draft, run: Run) -> dict[str, Any]:
    project = str(write(draft, run.folder / "p"))
    run("plan", project)
    return run("simulate", project)


QUESTIONS: dict[str, Callable[[Draft, Run], dict[str, Any]]] = {
    "plan": plan,
    "from": replan,
    "add": add,
    "calendar": calendar,
    "frontier": frontier,
    "of latency-cost": _frontier_of("latency,cost"),
    "of rate-cost": _frontier_of("rate,cost"),
    "of accuracy-rate": _frontier_of("accuracy,rate"),
    "explain": explain,
    "simulate": simulate,
}


def ask(name: str, draft: Draft, limit_s: float = LIMIT_S) -> Answer:
    """Ask a question about a draft, in a folder that is removed then."""
    started = time.monotonic()
    with TemporaryDirectory(prefix="matrix-") as folder:
        try:
            found = QUESTIONS[name](draft, Run(Path(folder), limit_s))
        except Unanswered as unanswered:
            own = unanswered.answer
            message = re.sub(re.escape(folder) + r"/\w*/?", "", own.message)
            return Answer(own.status, message, own.found, time.monotonic() - started)
    return Answer(PLANNED, "", found, time.monotonic() - started)
