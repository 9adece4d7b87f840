"""The plan file DIR/plan.json, and for which documents and `--set` options it was written.

A command about the plan takes plan.json as it stands while the documents that it was written for do not change. `plan`
and changed documents replace it, for `up`, `apply` and `gateway` also other options, and the command says so. To all
other commands an option that is given is a what-if: they plan in memory.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jellybean.documents import AnyProject, build_problem, override_options
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


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """For what plan.json was written: the plan's hash, the problem's content hash, and the `--set` options.

    A plan that `plan --from` keeps states the options it was made with; the record has those that it was kept for.
    """

    plan: str
    problem: str
    overrides: tuple[str, ...]


def save_plan(project: AnyProject, planned: Planned) -> dict[str, Any]:
    """Write DIR/plan.json atomically, and for what it was written; returns the plan document."""
    from jellybean.planning.project_plan import require_plan

    document = to_document(require_plan(planned))
    return write_plan(planned.asked or project, document, planned.problem)


def write_plan(project: AnyProject, document: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """Write a plan document to DIR/plan.json, recorded as the solution of `problem`; returns the document unchanged."""
    write_plan_file(project.directory / PLAN_FILE, document)
    _record(project, str(document["hash"]), problem_key(problem))
    return document


def write_plan_file(path: Path, document: dict[str, Any]) -> None:
    """Write a plan document to a file, atomically."""
    write_file(path, json.dumps(document, indent=1) + "\n")


def load_plan(directory: Path) -> Plan:
    """Load the plan in DIR/plan.json."""
    return _own_document(directory)[1]


def read_document(path: Path, hint: str = "") -> tuple[dict[str, Any], Plan]:
    """The document in a plan file and the plan; without `hint` the file was named by the user.

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
        return document, from_document(document)
    except PlanDocumentError as error:
        raise kind(f"{path}: {error}{hint}") from error


def planned_overrides(directory: Path) -> tuple[str, ...]:
    """The `--set` options that DIR/plan.json states it was made or kept for, in a format of any version."""
    document = _stated(directory)
    record = _read_record(directory)
    if record is not None and record.plan == document.get("hash"):
        return record.overrides
    overrides = document.get("overrides")
    return tuple(text for text in overrides if isinstance(text, str)) if isinstance(overrides, list) else ()


def current_plan(project: AnyProject, *, anew: bool = False, writes: bool = True) -> tuple[Plan, str]:
    """The plan for the current documents, and the reason why it was planned again (empty: plan.json as it stands).

    `anew`: plan in any case. `writes`: a plan that was made again becomes plan.json; if False, no file changes.
    InfeasibleError if no plan meets the current documents' targets; the outdated plan is not returned. JellyBeanError
    if plan.json cannot be read as a plan: it may have been edited, and stays.
    """
    directory = project.directory
    plan, reason = (None, "--replan") if anew else _checked(project, writes=writes)
    if plan is not None and not reason:
        return plan, ""
    from jellybean.planning.project_plan import plan_project, require_plan

    planned = plan_project(project, compare=False)
    plan = require_plan(planned, kept_plan(directory, outdated=True))
    if not writes:
        command = f"jellybean plan {shlex.quote(str(directory))}{plan_options(plan)}"
        return plan, f"{reason}: planned for this command alone, nothing is written; to keep this plan: {command}"
    before = current_hash(directory)
    served = replaces_served_plan(directory, to_document(plan))
    document = save_plan(project, planned)
    if document["hash"] == before:
        return plan, ""
    options = f" with{override_options(project.overrides)}" if project.overrides else ""
    wrote = f"{reason}: planned again{options} and wrote {directory / PLAN_FILE}"
    return plan, "\n".join(filter(None, (wrote, served)))


def _checked(project: AnyProject, *, writes: bool) -> tuple[Plan | None, str]:
    """The plan in DIR/plan.json, None if there is none, and why it does not answer the project's problem, or nothing.

    A plan without a record, as one that was copied here, answers it if it is what the problem makes of its choices.
    """
    directory = project.directory
    if not (directory / PLAN_FILE).exists():
        return None, f"{PLAN_FILE} did not exist"
    document, plan = _own_document(directory)
    problem = build_problem(project)
    record, key = _read_record(directory), problem_key(problem)
    if record is None or record.plan != document["hash"]:
        if reason := _mismatch(problem, plan):
            return plan, reason
        if writes:
            _record(project, document["hash"], key)
        return plan, ""
    if record.problem == key:
        return plan, ""
    if record.overrides != project.overrides:
        return plan, f"{PLAN_FILE} is the plan {_for_options(record.overrides)}"
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


def _for_options(overrides: Sequence[str]) -> str:
    return f"for{override_options(overrides)}" if overrides else "without --set"


def replaces_served_plan(directory: Path, document: Mapping[str, Any]) -> str:
    """A sentence for the user if DIR/plan.json has the plan that is served, and `document` is another; else empty.

    The gateway says which plan it serves: an `apply` from elsewhere changes it. Empty if it does not answer.
    """
    try:
        running_state(directory.resolve())
        from jellybean.serving.client import Client  # gRPC only where a run is up

        with Client.of(directory.resolve(), timeout_s=_STATUS_S) as client:
            served = client.status().plan
    except (NotRunningError, RequestError):
        return ""
    if current_hash(directory) != served or document["hash"] == served:
        return ""
    folder = shell_text(directory)
    return (
        f"{directory / PLAN_FILE} had the plan that is served, {served[:12]}, which stays served until "
        f"`jellybean apply {folder}` has switched; `jellybean diff {folder} {RUNNING}` compares the two"
    )


def kept_plan(directory: Path, *, outdated: bool) -> str:
    """A sentence that tells the user that DIR/plan.json was not replaced; empty if that file does not exist.

    `outdated`: the file was made for other documents or options.
    """
    path = directory / PLAN_FILE
    if not path.exists():
        return ""
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    note = ", which does not match these documents and options" if outdated else ""
    return f"{path} still has the plan of {date}{note}"


def problem_key(problem: Problem) -> str:
    """Content hash of a problem, to detect plans that no longer match the documents."""
    pools = tuple(replace(pool, max_starts=None) for pool in problem.pools)  # which limits changes alone
    return plan_format.content_hash({"problem": json_values(replace(problem, pools=pools))})


def _own_document(directory: Path) -> tuple[dict[str, Any], Plan]:
    """The document in DIR/plan.json and the plan; the error names the command that makes it again, with its options."""
    options = override_options(planned_overrides(directory))
    return read_document(directory / PLAN_FILE, f"; run: jellybean plan {shlex.quote(str(directory))}{options}")


def current_hash(directory: Path) -> str | None:
    """The hash that DIR/plan.json states; None if there is none."""
    return _stated(directory).get("hash")


def _stated(directory: Path) -> dict[str, Any]:
    """What DIR/plan.json states, not validated; empty if it is no JSON object."""
    try:
        document = json.loads(read_regular(directory / PLAN_FILE, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _record(project: AnyProject, plan_hash: str, key: str) -> None:
    record = PlanRecord(plan_hash, key, project.overrides)
    write_file(state_folder(project.directory) / _RECORD_FILE, json.dumps(asdict(record)) + "\n")


def _read_record(directory: Path) -> PlanRecord | None:
    """For what plan.json was written; None if that is unknown."""
    try:
        stored = json.loads((directory / STATE_FOLDER / _RECORD_FILE).read_text(encoding="utf-8"))
        return PlanRecord(str(stored["plan"]), str(stored["problem"]), tuple(map(str, stored["overrides"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
