"""The plan file DIR/plan.json, and for which documents and `--set` options it was written.

A command about the plan takes plan.json as it stands while the documents that it was written for do not change. `plan`
and changed documents replace it, for `up`, `apply` and `gateway` also other options, and the command says so. To all
other commands an option that is given is a what-if: they plan in memory.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jellybean.documents import AnyProject, build_problem, override_options, require_folder
from jellybean.errors import InputError, JellyBeanError
from jellybean.folders import STATE_FOLDER, shell_text, state_folder, write_file
from jellybean.serving.errors import NotRunningError, RequestError
from jellybean.serving.run_state import running_state
from jellybean_agent import describe_error, read_regular
from jellybean_protos import plan_format
from jellybean_solver import (
    Plan,
    PlanDocumentError,
    Problem,
    as_planned,
    from_document,
    in_money,
    json_values,
    to_document,
)

if TYPE_CHECKING:  # the search takes longer to import than most commands run: it is imported where it plans
    from jellybean.planning.planned import Planned

PLAN_FILE = "plan.json"
RUNNING = "running"  # given instead of a file name, it means the plan that is being served
_RECORD_FILE = "plan.key"
_MAX_BYTES = 2**28  # of plan.json; an agent reads 64 MiB
_STATUS_S = 5.0  # longest wait for the gateway's status


class WrittenPlan(NamedTuple):
    """A plan, and its document as it was written: one of an earlier version has another hash than the plan."""

    document: dict[str, Any]
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """For what plan.json was written: the plan's hash, the problem's content hash, and the `--set` options.

    A plan that `plan --from` keeps states the options it was made with; the record has those that it was kept for.
    """

    plan: str
    problem: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan in a project's folder, as a file: DIR/plan.json, and beside it the record of what it was written for."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / PLAN_FILE

    def load(self) -> WrittenPlan:
        """The plan; the error names the command that makes it again, with its options."""
        options = override_options(self.overrides)
        return read_document(self.path, f"; run: jellybean plan {shlex.quote(str(self.directory))}{options}")

    def named(self, text: str) -> WrittenPlan:
        """The plan of a plan file, of another project's folder, or with `running` the one that is served from here."""
        if text == RUNNING:
            from jellybean.serving.client import served_document  # gRPC
            from jellybean.serving.endpoint import owner_endpoint

            require_folder(self.directory)
            document = served_document(owner_endpoint(self.directory))
            return WrittenPlan(document, from_document(document))
        path = Path(text)
        if path.suffix == ".json":
            return read_document(path)
        require_folder(path)
        return read_document(path / PLAN_FILE, f"; run: jellybean plan {shell_text(path)}")

    @property
    def hash(self) -> str | None:
        """The hash that the file states; None if there is none."""
        return self._stated().get("hash")

    @property
    def overrides(self) -> tuple[str, ...]:
        """The `--set` options that the plan states it was made or kept for, in a format of any version."""
        document = self._stated()
        if (record := self.record(document.get("hash"))) is not None:
            return record.overrides
        overrides = document.get("overrides")
        return tuple(text for text in overrides if isinstance(text, str)) if isinstance(overrides, list) else ()

    def _stated(self) -> dict[str, Any]:
        """What the file states, not validated; empty if it is no JSON object."""
        try:
            document = json.loads(read_regular(self.path, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def record(self, plan_hash: str | None) -> PlanRecord | None:
        """For what the plan with a hash was written; None if that is unknown."""
        try:
            stored = json.loads((self.directory / STATE_FOLDER / _RECORD_FILE).read_text(encoding="utf-8"))
            record = PlanRecord(str(stored["plan"]), str(stored["problem"]), tuple(map(str, stored["overrides"])))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return record if record.plan == plan_hash else None

    def write_record(self, record: PlanRecord) -> None:
        """Record what the plan that is there answers."""
        write_file(state_folder(self.directory) / _RECORD_FILE, json.dumps(asdict(record)) + "\n")

    def write(self, planned: Planned) -> None:
        """Write a plan, recorded as the solution of its problem and options."""
        document = planned.document
        if document is None:
            raise AssertionError("there is a plan to write")
        write_plan_file(self.path, document)
        self.write_record(PlanRecord(document["hash"], problem_key(planned.problem), planned.options))

    def kept_text(self, *, outdated: bool) -> str:
        """A sentence that tells the user that the file was not replaced; empty if there is none.

        `outdated`: it was made for other documents or options.
        """
        if not self.path.exists():
            return ""
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.path.stat().st_mtime))
        note = ", which does not match these documents and options" if outdated else ""
        return f"{self.path} still has the plan of {date}{note}"

    def replaces_served_text(self, plan_hash: str) -> str:
        """A sentence for the user if the file has the plan that is served, and the one to be written is another.

        The gateway says which plan it serves: an `apply` from elsewhere changes it. Empty if it does not answer.
        """
        try:
            running_state(self.directory.resolve())
            from jellybean.serving.client import Client  # gRPC only where a run is up

            with Client.of(self.directory.resolve(), timeout_s=_STATUS_S) as client:
                served = client.status().plan
        except (NotRunningError, RequestError):
            return ""
        if self.hash != served or plan_hash == served:
            return ""
        folder = shell_text(self.directory)
        return (
            f"{self.path} had the plan that is served, {served[:12]}, which stays served until "
            f"`jellybean apply {folder}` has switched; `jellybean diff {folder} {RUNNING}` compares the two"
        )


def write_plan_file(path: Path, document: Mapping[str, Any]) -> None:
    """Write a plan document to a file, atomically."""
    write_file(path, json.dumps(document, indent=1) + "\n")


def read_document(path: Path, hint: str = "") -> WrittenPlan:
    """The plan in a plan file; without `hint` the file was named by the user.

    JellyBeanError, with `hint` appended to its message, if the file is not a plan; InputError without a hint.
    """
    kind = JellyBeanError if hint else InputError
    try:
        document = json.loads(read_regular(path, _MAX_BYTES, or_pipe=not hint))
    except FileNotFoundError as error:
        missing = "there is no plan yet" if hint else "file not found"
        raise kind(f"{path}: {missing}{hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise kind(f"{path}: cannot be read as a plan: {describe_error(error)}{hint}") from error
    if not isinstance(document, dict):
        raise kind(f"{path}: is not a plan{hint}")
    try:
        return WrittenPlan(document, from_document(document))
    except PlanDocumentError as error:
        raise kind(f"{path}: {error}{hint}") from error


def current_plan(project: AnyProject, *, anew: bool = False, writes: bool = True) -> tuple[Plan, str]:
    """The plan for the current documents, and the reason why it was planned again (empty: plan.json as it stands).

    `anew`: plan in any case. `writes`: a plan that was made again becomes plan.json; if False, no file changes.
    InfeasibleError if no plan meets the current documents' targets; the outdated plan is not returned. JellyBeanError
    if plan.json cannot be read as a plan: it may have been edited, and stays.
    """
    file = PlanFile(project.directory)
    plan, reason = (None, "--replan") if anew else _checked(file, project, writes=writes)
    if plan is not None and not reason:
        return plan, ""
    from jellybean.planning.project_plan import plan_project, require_plan

    planned = plan_project(project, compare=False)
    plan = require_plan(planned, file.kept_text(outdated=True))
    if not writes:
        command = f"jellybean plan {shlex.quote(str(file.directory))}{plan_options(plan)}"
        return plan, f"{reason}: planned for this command alone, nothing is written; to keep this plan: {command}"
    before, written = file.hash, to_document(plan)["hash"]
    served = file.replaces_served_text(written)
    file.write(planned)
    if written == before:
        return plan, ""
    options = f" with{override_options(project.overrides)}" if project.overrides else ""
    wrote = f"{reason}: planned again{options} and wrote {file.path}"
    return plan, "\n".join(filter(None, (wrote, served)))


def _checked(file: PlanFile, project: AnyProject, *, writes: bool) -> tuple[Plan | None, str]:
    """The plan in the file, None if there is none, and why it does not answer the project's problem, or nothing.

    A plan without a record, as one that was copied here, answers it if it is what the problem makes of its choices.
    """
    if not file.path.exists():
        return None, f"{PLAN_FILE} did not exist"
    document, plan = file.load()
    problem, record = build_problem(project), file.record(document["hash"])
    key = problem_key(problem)
    if record is None:
        reason = _mismatch(problem, plan)
        if writes and not reason:
            file.write_record(PlanRecord(document["hash"], key, project.overrides))
        return plan, reason
    if record.problem == key:
        return plan, ""
    if record.overrides != project.overrides:
        made_for = f"for{override_options(record.overrides)}" if record.overrides else "without --set"
        return plan, f"{PLAN_FILE} is the plan {made_for}"
    return plan, f"the documents have changed since {PLAN_FILE} was made"


def _mismatch(problem: Problem, plan: Plan) -> str:
    """Why a plan is not one of the problem: it breaks a limit, runs other models, or states other figures."""
    from jellybean_solver import plan_diff, rescore  # which match plans by an integer program

    problem = as_planned(in_money(problem), plan)
    rescored, _, complaints = rescore(problem, plan)
    if complaints:
        return f"{PLAN_FILE} does not fit the documents ({complaints[0]})"
    known = problem.operator_by_name
    if any(one.model != known[one.name].variant(one.variant).model for one in plan.variants):
        return f"{PLAN_FILE} names other model files than the documents"
    if not plan_diff(plan, rescored).is_empty:
        return f"{PLAN_FILE} states other figures than the documents"
    return ""


def plan_options(plan: Plan) -> str:
    """The options of the plan as text for commands that plan or serve it, with a space before each."""
    return f"{override_options(plan.overrides)}{' --stale' * bool(plan.stale_profiles)}"


def problem_key(problem: Problem) -> str:
    """Content hash of a problem, to detect plans that no longer match the documents."""
    pools = tuple(replace(pool, max_starts=None) for pool in problem.pools)  # which limits changes alone
    return plan_format.content_hash({"problem": json_values(replace(problem, pools=pools))})
