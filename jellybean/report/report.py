"""The report of a plan: predicted and measured figures, targets, cost breakdown and utilisation.

A pure value computed from the store's rows; terminal tables, JSON and the HTML page display it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from jellybean.bench.caveats import recorded_caveats
from jellybean.bench.shown_answers import ShownAnswer
from jellybean.documents import load_project
from jellybean.errors import InputError
from jellybean.folders import shell_text
from jellybean.planning.altered_models import altered_models_text
from jellybean.planning.plan_file import plan_options
from jellybean.planning.stale_accuracy import stale_accuracy_text
from jellybean.report.advice import advice_elsewhere, find_advice, known_plans
from jellybean.report.breakdown import Breakdown, break_down
from jellybean.report.comparison import (
    ACCURACY_MARGIN,
    COMPLETED,
    INTERVAL_KEYS,
    METRIC_BY_KEY,
    RANGES,
    Comparison,
    Drift,
    SloVerdict,
    compare,
    drift,
    figure,
    judge,
)
from jellybean.report.headline import Headline, Judgement, make_headline
from jellybean.report.shown_measurements import newest_benches, newest_of_all
from jellybean.report.store import Record, Snapshot, Store, StoreRow
from jellybean.report.utilisation import WorkerUse, worker_uses
from jellybean_agent import planned_rate_per_s
from jellybean_solver import Cost, JellyBeanError, Plan, from_document, served_streams

REPORT_VERSION = 5
_PREDICTED = (*METRIC_BY_KEY, *INTERVAL_KEYS["latency_p99_s"])  # keys of predicted figures


@dataclass(frozen=True, slots=True)
class ReportedBaseline:
    """A baseline that the plan is compared with. `cost_usd_per_h` is None if it is infeasible."""

    name: str
    cost_usd_per_h: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkflowUse:
    """One workflow of a plan for several: its share of the cost, predicted and measured figures, and targets."""

    name: str
    cost: Cost
    predicted: Mapping[str, float]  # keys: accuracy, throughput_per_s, latency_p50_s, latency_p90_s, latency_p99_s
    slos: tuple[SloVerdict, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def measured(self) -> Mapping[str, float]:
        """Measured figures, by the keys of `predicted`."""
        return {one.metric: one.measured for one in self.comparisons if one.measured is not None}


@dataclass(frozen=True, slots=True)
class MeasurementRun:
    """One measurement: kind, time, figures and machine, requests by outcome, and what limits the figures, in words."""

    kind: str
    at: float
    figures: Mapping[str, float]  # keys: duration_s, offered, completed, errors and the metrics
    machine: Mapping[str, str]
    outcomes: Mapping[str, int]
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The report of one plan."""

    plan: Plan
    plan_hash: str
    planned_at: float
    project: str
    headline: Headline
    comparisons: tuple[Comparison, ...]
    slos: tuple[SloVerdict, ...]
    breakdown: Breakdown
    workers: tuple[WorkerUse, ...]
    drift: tuple[Drift, ...]
    runs: tuple[MeasurementRun, ...]  # oldest first
    baselines: tuple[ReportedBaseline, ...]
    planning: Record
    advice: tuple[str, ...]  # commands that add missing figures
    caveats: tuple[str, ...] = ()  # of the profiles and of the measurements whose figures are shown
    workflows: tuple[WorkflowUse, ...] = ()  # empty for a single workflow
    answers: tuple[ShownAnswer, ...] = ()  # of the measurement whose accuracy is shown

    @property
    def measured(self) -> bool:
        return any(comparison.measured is not None for comparison in self.comparisons)

    @property
    def known_comparisons(self) -> tuple[Comparison, ...]:
        """Those of a single workflow; of several, of figures that they have together: cost and throughput."""
        if not self.workflows:
            return self.comparisons
        return tuple(one for one in self.comparisons if (one.predicted, one.measured) != (None, None))

    def comparison(self, metric: str) -> Comparison:
        """The comparison of one metric; KeyError for an unknown one."""
        return {comparison.metric: comparison for comparison in self.comparisons}[metric]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, named like the fields; `version` changes if a name is removed or redefined."""
        plan = self.plan
        return {
            "kind": "Report",
            "version": REPORT_VERSION,
            "name": plan.name,
            "plan_hash": self.plan_hash,
            "planned_at": self.planned_at,
            "project": self.project,
            "headline": _plain(self.headline),
            "cost_usd_per_h": {
                "total": plan.cost.total_usd_per_h,
                "compute": plan.cost.compute_usd_per_h,
                "network": plan.cost.network_usd_per_h,
            },
            "accuracy": plan.accuracy,
            **({"uses": dict(plan.uses)} if plan.uses else {}),
            "selection": dict(plan.selection),
            "certificate": {
                key: value
                for key, value in _plain(plan.certificate).items()
                if value or key not in ("keeps", "forgone_usd_per_h", "penalty_usd_per_h")
            },
            "placements": [_plain(placement) for placement in plan.placements],
            "comparisons": [_plain(comparison) for comparison in self.comparisons],
            "slos": [_plain(slo) for slo in self.slos],
            "cost_by": _plain(self.breakdown),
            "workers": [_plain(worker) for worker in self.workers],
            "drift": [_plain(item) for item in self.drift],
            "runs": [_plain(run) for run in self.runs],
            "baselines": [_plain(baseline) for baseline in self.baselines],
            "planning": dict(self.planning),
            "advice": list(self.advice),
            "caveats": list(self.caveats),
            **({"stale_profiles": list(plan.stale_profiles)} if plan.stale_profiles else {}),
            **({"overrides": list(plan.overrides)} if plan.overrides else {}),
            **({"workflows": [_plain(workflow) for workflow in self.workflows]} if self.workflows else {}),
            **({"answers": [answer.to_json() for answer in self.answers]} if self.answers else {}),
        }


def build_report(store: Store, plan_hash: str | None = None, elsewhere: str = "") -> Report:
    """The report of the plan whose hash begins with `plan_hash`; by default of the newest plan.

    Figures that were not measured yet are missing; `advice` has the commands that measure them. `elsewhere`: arguments
    of such commands that name a gateway on another machine. InputError if the store has no such plan, JellyBeanError if
    it has none.
    """
    snapshot = store.latest(plan_hash)
    if snapshot is None:
        if plan_hash is not None:
            raise InputError(f"no plan {plan_hash} in {store.path}{known_plans(store)}")
        command = f"jellybean plan {shell_text(store.project)}"
        raise JellyBeanError(f"{store.project} has no plan to report yet; run: {command}")
    plan = from_document(snapshot.document)
    predicted = _predicted(plan, snapshot)
    rows = store.history(snapshot.plan_hash)
    benches = [row for row in rows if row.kind == "bench"]
    shown = newest_benches(plan, snapshot, benches)
    of_all = newest_of_all(plan, snapshot, benches)
    measured = _measured_together(of_all) if plan.workflows else _measured(snapshot)
    comparisons = compare(predicted, measured)
    slos = judge(plan.slo, predicted, measured)
    advice = tuple(advice_elsewhere(snapshot, elsewhere) if elsewhere else find_advice(snapshot, plan, store))
    workflows = tuple(_workflows(plan, snapshot, shown))
    workers = worker_uses(plan, snapshot, of_all.values())
    headline = make_headline(
        Judgement(
            project=elsewhere or shlex.quote(store.project),
            options=plan_options(plan),
            comparisons=[("", one) for one in comparisons]
            + [(w.name, one) for w in workflows for one in w.comparisons],
            targets=[("", slo) for slo in slos] + [(w.name, slo) for w in workflows for slo in w.slos],
            workers=workers,
            benches=shown,
            is_whole=bool(of_all),
            is_simulated=snapshot.prediction is not None,
            is_scaled=any(row.kind == "scaled" for row in rows),
        )
    )
    return Report(
        plan=plan,
        plan_hash=snapshot.plan_hash,
        planned_at=snapshot.planning.created_s,
        project=store.project,
        headline=headline,
        comparisons=comparisons,
        slos=slos,
        breakdown=break_down(plan),
        workers=workers,
        drift=() if plan.workflows else drift(benches),
        runs=tuple(_run(row) for row in rows if row.kind not in {"plan", "prediction"}),
        baselines=_baselines(snapshot.planning.record),
        planning=snapshot.planning.record,
        advice=advice,
        caveats=tuple(_caveats(snapshot, plan, store, (*shown.items(), *of_all.items()))),
        workflows=workflows,
        answers=tuple(ShownAnswer(**answer) for answer in _bench_record(snapshot).get("answers") or ()),
    )


def _workflows(plan: Plan, snapshot: Snapshot, shown: Mapping[str, Record]) -> Iterator[WorkflowUse]:
    """Planned, simulated and measured figures of each workflow of a plan for several workflows."""
    record = snapshot.prediction.record if snapshot.prediction is not None else {}
    simulated, planned = record.get("workflows") or {}, _planned_latencies_s(snapshot)
    for workflow in plan.workflows:
        own = {"accuracy": workflow.accuracy, "cost_usd_per_h": workflow.cost.total_usd_per_h}
        known = {**own, **planned.get(workflow.name, {}), **simulated.get(workflow.name, {})}
        predicted = {key: value for key in _PREDICTED if (value := figure(known, key)) is not None}
        predicted["throughput_per_s"] = _rate_per_s(plan, workflow.name)
        latest = shown.get(workflow.name, {})
        measured = {**_figures_of(latest), RANGES: latest.get(RANGES) or {}}
        slos, comparisons = judge(workflow.slo, predicted, measured), compare(predicted, measured)
        yield WorkflowUse(workflow.name, workflow.cost, predicted, slos, comparisons)


def _rate_per_s(plan: Plan, workflow: str) -> float:
    """Requests per second that a workflow was planned for."""
    return sum(stream.rate_per_s for stream in served_streams(plan) if stream.workflow == workflow)


def _measured_together(benches: Mapping[str, Record]) -> dict[str, Any]:
    """What can be summed over all workflows. `benches`: of each, at the same time, or empty."""
    parts = [_figures_of(bench) for bench in benches.values()]
    return {
        key: sum(part[key] for part in parts)
        for key in ("cost_usd_per_h", "throughput_per_s")
        if parts and all(key in part for part in parts)
    }


def _predicted(plan: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """Predicted figures: simulated if available, otherwise those of the plan."""
    predicted: dict[str, Any] = {
        "cost_usd_per_h": plan.cost.total_usd_per_h,
        "throughput_per_s": _promised_per_s(plan, snapshot.document),
    }
    if plan.accuracy is not None:
        predicted["accuracy"] = plan.accuracy
    predicted |= _planned_latencies_s(snapshot).get("", {})
    record = snapshot.prediction.record if snapshot.prediction is not None else {}
    simulated = {key: value for key in _PREDICTED if (value := figure(record, key)) is not None}
    if plan.workflows:  # a single highest rate is meaningless, because the workflows have different rates
        simulated.pop("highest_rate_per_s", None)
    return predicted | simulated | {"highest_rate_is_limit": bool(record.get("highest_rate_is_limit"))}


def _planned_latencies_s(snapshot: Snapshot) -> Mapping[str, Mapping[str, float]]:
    """Workflow -> latencies as predicted by `plan`, p99 with its interval; a single workflow has the empty name.

    Plans that were stored by earlier versions have p99 alone.
    """
    keys = {
        "latency_p50_s": "p50_s",
        "latency_p90_s": "p90_s",
        "latency_p99_s": "p99_s",
        "latency_p99_low_s": "low_s",
        "latency_p99_high_s": "high_s",
    }
    return {
        name: {key: stated[field] for key, field in keys.items() if field in stated}
        for name, stated in (snapshot.planning.record.get("latency_p99") or {}).items()
    }


def _promised_per_s(plan: Plan, document: Record) -> float:
    """Requests per second that the plan was made for; of several workflows the sum."""
    if plan.workflows:
        return sum(stream.rate_per_s for stream in served_streams(plan))
    return planned_rate_per_s(document)


def _measured(snapshot: Snapshot) -> dict[str, Any]:
    """Figures measured by `bench` at the declared rates, and the highest rate from `bench --saturate`."""
    bench = _bench_record(snapshot)
    measured = _figures_of(bench)
    saturate = snapshot.saturate.record if snapshot.saturate is not None else {}
    measured[RANGES] = {**(bench.get(RANGES) or {}), **(saturate.get(RANGES) or {})}
    if (highest := figure(saturate, "highest_rate_per_s")) is not None:
        measured["highest_rate_per_s"] = highest
    return measured


def _figures_of(bench: Record) -> dict[str, Any]:
    keys = (*METRIC_BY_KEY, ACCURACY_MARGIN, COMPLETED)
    return {key: value for key in keys if (value := figure(bench, key)) is not None}


def _bench_record(snapshot: Snapshot) -> Record:
    return snapshot.bench.record if snapshot.bench is not None else {}


def _run(row: StoreRow) -> MeasurementRun:
    machine = row.record.get("machine")
    figures = {key: value for key in row.record if (value := figure(row.record, key)) is not None and key != "at"}
    described = {str(key): str(value) for key, value in machine.items()} if isinstance(machine, Mapping) else {}
    return MeasurementRun(
        kind=row.kind,
        at=figure(row.record, "at") or row.created_s,
        figures=figures,
        machine=described,
        outcomes=row.record.get("outcomes") or {},
        caveats=recorded_caveats(row.record),
    )


def _caveats(snapshot: Snapshot, plan: Plan, store: Store, benches: Sequence[tuple[str, Record]]) -> Iterator[str]:
    """What limits the predicted and measured figures that the report shows. `benches`: (workflow, measurement)."""
    if altered := altered_models_text(Path(store.project), plan):
        yield altered
    if stale := _stale_accuracy(Path(store.project), plan):
        yield stale
    yield from (f"profiles: {text}" for text in snapshot.planning.record.get("profile_notes") or ())
    sources = [(f"bench of {name}" if name else "bench", record) for name, record in benches]
    if snapshot.saturate is not None:
        sources.append(("bench --saturate", snapshot.saturate.record))
    texts = [(source, text) for source, record in sources for text in recorded_caveats(record) if text != stale]
    yield from (f"{source}: {text}" for source, text in dict.fromkeys(texts))


def _stale_accuracy(directory: Path, plan: Plan) -> str:
    """What has changed since the plan's accuracy was measured; empty if today's documents cannot be read."""
    try:
        return stale_accuracy_text(load_project(directory, plan.overrides), plan)
    except JellyBeanError:
        return ""


def _baselines(planning: Record) -> tuple[ReportedBaseline, ...]:
    found = planning.get("baselines") or ()
    return tuple(
        ReportedBaseline(str(name), None if cost is None else float(cost), str(note)) for name, cost, note in found
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
