"""Commands that add what a report lacks, and the plans that can be reported."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from jellybean.display import formats
from jellybean.planning.plan_file import PlanFile, plan_options
from jellybean.report.store import Snapshot, Store
from jellybean.serving.allowed_python import options_for_plan
from jellybean.serving.errors import ServingError
from jellybean.serving.run_state import running_state
from jellybean_solver import Plan, independent_streams_text

HASH_DIGITS = 12  # digits of a plan's hash in messages and file names
MAX_KNOWN_PLANS = 10  # plans that are listed if one is not found


def find_advice(snapshot: Snapshot, plan: Plan, store: Store) -> Iterator[str]:
    """Lines `COMMAND  what it adds`, or sentences."""
    project = shlex.quote(store.project)
    options = plan_options(plan)
    is_saturated = snapshot.saturate is not None or bool(plan.workflows)  # of several, it is measured one by one
    is_open = None in (snapshot.prediction, snapshot.bench) or not is_saturated
    if is_open and PlanFile(Path(store.project)).hash not in (None, snapshot.plan_hash):
        yield f"jellybean plan {project}{options}  comes first: plan.json has another plan now"
    if snapshot.prediction is None:
        yield f"jellybean simulate {project}{options}  predicts latency and the highest sustained rate"
    if reason := independent_streams_text(plan):
        yield from (f"{plan.name}: {sentence}" for sentence in reason.splitlines())
        return
    if not all(operator.model is not None for operator in plan.variants):
        if snapshot.bench is None:
            yield "Variants without a model file can be planned and simulated, but not served or measured."
        return
    if snapshot.bench is None:
        first = _first(Path(store.project), f"{project}{options}{options_for_plan(plan)}")
        yield f"jellybean bench {project}  measures the plan that is served{first}"
    if not is_saturated:
        yield f"jellybean bench {project} --saturate  finds the highest sustained rate"
    yield from _measured_elsewhere(snapshot, store)


def advice_elsewhere(snapshot: Snapshot, arguments: str) -> Iterator[str]:
    """As `find_advice`, of a plan that a gateway on another machine serves: only that it can be measured."""
    if snapshot.bench is None:
        yield f"jellybean bench {arguments}  measures the plan that is served there"


def _first(directory: Path, arguments: str) -> str:
    """The command that has to come before `bench`, in brackets; none if this machine serves the project."""
    with contextlib.suppress(ServingError):
        running_state(directory.resolve())
        return ""
    return f" (first jellybean up {arguments} --detach)"


def _measured_elsewhere(snapshot: Snapshot, store: Store) -> Iterator[str]:
    """If this plan was never measured, the command for the one that was measured last."""
    measured = {stored.measured_s: stored for stored in store.plans() if stored.measured_s is not None}
    if measured and all(stored.plan_hash != snapshot.plan_hash for stored in measured.values()):
        last = measured[max(measured)]
        command = f"jellybean report {shlex.quote(store.project)} --plan {last.plan_hash[:HASH_DIGITS]}"
        yield f"{command}  shows the plan that was measured last, {formats.moment(last.measured_s)}"


def known_plans(store: Store) -> str:
    """The newest plans of a store, one a line, as the end of an error message."""
    lines = [
        f"  {stored.plan_hash[:HASH_DIGITS]}  {formats.moment(stored.planned_s)}  "
        f"{formats.count(stored.measurements, 'measurement')}"
        for stored in store.plans()[:MAX_KNOWN_PLANS]
    ]
    return "; the newest plans there:\n" + "\n".join(lines) if lines else ""
