"""Live figures of a run from two scrapes of its gateway's and workers' metrics: `jellybean top`."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from jellybean.serving.client import Client
from jellybean.serving.endpoint import Endpoint, owner_endpoint
from jellybean.serving.errors import ServingError
from jellybean.serving.outcomes import OutcomeKind
from jellybean.serving.run_state import failing, naming_failing, read_state
from jellybean.serving.top.overload import Load, Overload, find_overload
from jellybean_agent import EXPIRING_SHARE, PlanFigures, PlanView, WorkerView, plan_view, workflow_views
from jellybean_protos.plan_format import qualified_name

_ASK_S = 5.0
_REQUESTS = "jellybean_gateway_requests_total"  # by outcome
_LATENCIES = "jellybean_gateway_latency_seconds_bucket"
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All metrics of a run at one moment. `at_s`: CLOCK_MONOTONIC.

    `workflows`: the figures of each, if there are several, whose metrics have their name as a label. `one_of_several`:
    it is of one of them.
    """

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]  # name -> labels -> value
    workflow: str = ""
    plan: str = ""
    state: str = ""
    workers: Mapping[str, str] = field(default_factory=dict)  # worker -> state
    reasons: Mapping[str, str] = field(default_factory=dict)  # worker -> why it is not ready
    plans: Mapping[str, WorkerView] = field(default_factory=dict)  # worker -> its part of the plan
    figures: PlanFigures | None = None
    directory: Path | None = None
    failing: tuple[str, ...] = ()  # processes that are started again and again, with the reason
    at_unix_s: float = field(default_factory=time.time)
    workflows: Mapping[str, PlanFigures] = field(default_factory=dict)
    one_of_several: bool = False

    @property
    def own_workflow(self) -> str:
        """Its workflow, if it is of one of several."""
        return self.workflow if self.one_of_several else ""

    def of_workflow(self, name: str) -> Scrape:
        """The part of one of several workflows: the gateway's metrics of it, and workers' of its operators."""
        samples = {
            metric: own
            for metric, series in self.samples.items()
            if (
                own := {
                    labels: value for given, value in series.items() if (labels := _own_labels(given, name)) is not None
                }
            )
        }
        figures = self.workflows.get(name)
        return replace(
            self, samples=samples, workflow=name, figures=figures, workflows={}, workers={}, one_of_several=True
        )

    def of(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Samples of a metric, as (labels, value)."""
        for labels, value in self.samples.get(name, {}).items():
            yield dict(labels), value

    def total(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return sum(self.samples.get(name, {}).values())


def _own_labels(labels: Labels, workflow: str) -> Labels | None:
    """Labels of a series in the part of one of several workflows, with its own names; None: it is not of this one.

    The gateway's series have a label `workflow`, workers' the operator WORKFLOW/NAME.
    """
    given = dict(labels)
    if "workflow" in given:
        return tuple(label for label in labels if label[0] != "workflow") if given["workflow"] == workflow else None
    prefix = qualified_name(workflow, "")
    if not given.get("operator", "").startswith(prefix):
        return None
    return tuple(sorted({**given, "operator": given["operator"].removeprefix(prefix)}.items()))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: planned and measured busy fractions (None: it does not answer), its queue length, and its device."""

    worker: str
    tier: str
    state: str
    planned: float
    busy: float | None
    queue: int
    device: str = ""
    reason: str = ""  # why it is not ready


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator over all its workers. `batch`: requests per run, None without a run."""

    operator: str
    variant: str
    workers: int
    rate_per_s: float
    failed_per_s: float
    batch: float | None
    busy: float
    queue: int


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Traffic from one tier to another."""

    tier: str
    to_tier: str
    bytes_per_s: float
    bytes: float
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class ExpiringCertificate:
    """A certificate that is about to expire, or has expired. `process`: gateway, or a worker's name."""

    process: str
    expires_unix_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class Top:
    """Rates over the last `window_s` seconds, and totals since the start. Latencies are None without an answer."""

    workflow: str
    plan: str
    state: str
    window_s: float
    offered_per_s: float  # valid requests that arrived
    planned_per_s: float  # what the plan was made for
    answered_per_s: float
    failed_per_s: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    target_p99_s: float | None
    overload: Overload | None
    failing: tuple[str, ...]
    in_hand: int
    waiting: int
    outcomes_per_s: Mapping[OutcomeKind, float]
    outcomes: Mapping[OutcomeKind, int]  # since the start
    retries: int
    left_out: int
    usd_per_h: float
    network_usd_per_h: float
    so_far_usd: float
    workers: tuple[WorkerRow, ...]
    operators: tuple[OperatorRow, ...]
    links: tuple[LinkRow, ...]
    expiring: tuple[ExpiringCertificate, ...] = ()
    refused: tuple[str, ...] = ()  # which workers refused messages of which processes, as sentences
    workflows: tuple[Top, ...] = ()  # each, if there are several; latencies, targets and overload are then only theirs
    audits: Mapping[str, float] = field(default_factory=dict)  # by outcome since the start, if there are any


class Watcher:
    """Scrapes a gateway and its workers, across replacements of its plan; by default that of the project's run."""

    def __init__(self, directory: Path, endpoint: Endpoint | None = None, workflow: str = "") -> None:
        """`workflow`: the only one, of several, that is watched."""
        self._named, self._directory, self._endpoint = directory, directory.resolve(), endpoint
        self._workflow = workflow
        self._view: PlanView | None = None
        self._figures: Mapping[str, PlanFigures] = {}  # by workflow, if there are several

    def scrape(self) -> Scrape:
        """All metrics now. NotRunningError when nothing is up, RequestError when the gateway does not answer.

        ServingError if a plan that has just taken over leaves the workflow out that is watched.
        """
        endpoint = replace(self._endpoint or owner_endpoint(self._directory), workflow=self._workflow)
        naming = naming_failing(self._directory) if self._endpoint is None else contextlib.nullcontext()
        with naming, Client.at(endpoint, timeout_s=_ASK_S) as client:
            status = client.status()
            samples = parse(client.metrics())
            if self._view is None or self._view.hash != status.plan:
                self._view, self._figures = self._read(json.loads(client.plan()))
        run = read_state(self._directory) if self._endpoint is None else None
        return Scrape(
            time.monotonic(),
            samples,
            status.workflow,
            status.plan,
            status.state,
            workers=dict(status.workers),
            reasons=dict(status.reasons),
            plans=self._view.workers,
            figures=self._view.figures,
            directory=self._named if self._endpoint is None else None,  # the command for overload re-plans a run here
            failing=() if run is None else failing(run),
            workflows=self._figures,
            one_of_several=bool(self._workflow),
        )

    def _read(self, document: Mapping[str, Any]) -> tuple[PlanView, Mapping[str, PlanFigures]]:
        """The view of the plan, or of the workflow that is watched; and if there are several, the figures of each.

        ServingError if a plan that has just taken over leaves the workflow out that is watched.
        """
        whole, views = plan_view(document), workflow_views(document)
        if self._workflow and whole.workflows:
            if self._workflow not in views:
                served = ", ".join(views)
                raise ServingError(f"the plan that has taken over leaves {self._workflow} out: it serves {served}")
            return views[self._workflow], {}
        return whole, {name: view.figures for name, view in views.items()} if whole.workflows else {}


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Samples of Prometheus' text format, by name and labels."""
    found: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return dict(found)


def top_of(before: Scrape, now: Scrape) -> Top:
    """Rates between two scrapes, and the state at the second."""
    span_s = max(now.at_s - before.at_s, 1e-9)
    increase = _Increase(before, now)
    each = tuple(top_of(before.of_workflow(name), now.of_workflow(name)) for name in now.workflows)
    gateway = {name: int(now.total(f"jellybean_gateway_{name}")) for name in ("in_hand", "waiting")}
    totals = {name: int(now.total(f"jellybean_gateway_{name}_total")) for name in ("retries", "left_out")}
    network = "jellybean_network_cost_usd_total", "jellybean_gateway_network_cost_usd_total"
    network_usd_per_h = sum(increase.total(name) for name in network) / span_s * 3600
    counted = _by("outcome", now.of(_REQUESTS))
    per_s = {kind: count / span_s for kind, count in _by("outcome", increase.of(_REQUESTS)).items()}
    buckets = _sums_by_bound(increase.of(_LATENCIES))
    load = _load(now, increase, per_s, None if each else quantile(buckets, 0.99), span_s)
    return Top(
        workflow=now.workflow,
        plan=now.plan,
        state=now.state,
        window_s=span_s,
        offered_per_s=load.offered_per_s,
        planned_per_s=load.planned_per_s,
        answered_per_s=per_s.get(OutcomeKind.ANSWERED, 0.0),
        failed_per_s=sum(per_s.values()) - per_s.get(OutcomeKind.ANSWERED, 0.0),
        latency_p50_s=None if each else quantile(buckets, 0.5),
        latency_p99_s=load.p99_s,
        target_p99_s=None if each else load.target_p99_s,
        overload=None if each else find_overload(load, now.figures, now.directory, now.own_workflow),
        failing=now.failing,
        **gateway,
        outcomes_per_s={kind: per_s.get(kind, 0.0) for kind in OutcomeKind},
        outcomes={kind: int(counted.get(kind, 0)) for kind in OutcomeKind},
        **totals,
        usd_per_h=now.total("jellybean_gateway_price_usd_per_h") + network_usd_per_h,
        network_usd_per_h=network_usd_per_h,
        so_far_usd=now.total("jellybean_gateway_cost_usd_total"),
        workers=tuple(_workers(now, increase, span_s)),
        operators=tuple(_operators(now, increase, span_s)),
        links=tuple(_links(now, increase, span_s)),
        expiring=tuple(_expiring(now)),
        refused=tuple(_refused(now)),
        workflows=each,
        audits=dict(_by("outcome", now.of("jellybean_gateway_audits_total"))),
    )


def worst_p99_s(before: Scrape, now: Scrape) -> float | None:
    """The p99 latency between two scrapes, of several workflows the highest of theirs; None without an answer."""
    by_workflow: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for labels, count in _Increase(before, now).of(_LATENCIES):
        by_workflow[labels.get("workflow", "")].append((labels, count))
    each = (quantile(_sums_by_bound(buckets), 0.99) for buckets in by_workflow.values())
    return max((p99_s for p99_s in each if p99_s is not None), default=None)


def _sums_by_bound(buckets: Iterable[tuple[dict[str, str], float]]) -> list[tuple[float, float]]:
    """Buckets of histograms, as (labels, count), as those of one, bounds ascending."""
    return sorted((float(bound), count) for bound, count in _by("le", buckets).items())


def _load(now: Scrape, increase: _Increase, per_s: Mapping[str, float], p99_s: float | None, span_s: float) -> Load:
    """What was offered beside what the plan was made for. `per_s`: ended requests by outcome."""
    received_per_s = increase.total("jellybean_gateway_received_total") / span_s
    return Load(
        window_s=span_s,
        offered_per_s=max(0.0, received_per_s - per_s.get(OutcomeKind.CLIENT_ERROR, 0.0)),
        planned_per_s=now.total("jellybean_plan_requests_per_second"),
        late_per_s=per_s.get(OutcomeKind.LATE, 0.0),
        shed_per_s=per_s.get(OutcomeKind.SHED, 0.0),
        p99_s=p99_s,
        target_p99_s=now.total("jellybean_slo_latency_p99_seconds") or None,  # a target is above 0
    )


class _Increase:
    """Increases of counters between two scrapes; a counter that was reset by a restart increased by its value."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before, self._now = before, now

    def of(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        before = self._before.samples.get(name, {})
        for labels, value in self._now.samples.get(name, {}).items():
            was = before.get(labels, 0.0)
            yield dict(labels), value - was if value >= was else value

    def total(self, name: str) -> float:
        return sum(grown for _, grown in self.of(name))


def quantile(buckets: Iterable[tuple[float, float]], share: float) -> float | None:
    """A quantile of a cumulative histogram (bounds ascending), interpolated in its bucket; None without samples."""
    found = list(buckets)
    wanted = share * found[-1][1] if found else 0.0
    if wanted <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in found:
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def _by(label: str, items: Iterable[tuple[dict[str, str], float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for labels, value in items:
        found[labels[label]] += value
    return found


def _workers(now: Scrape, increase: _Increase, span_s: float) -> Iterator[WorkerRow]:
    busy, queues = _by("worker", increase.of("jellybean_busy_seconds_total")), _by("worker", now.of("jellybean_queue"))
    for name, state in sorted(now.workers.items()):
        plan = now.plans.get(name)  # None while the plan is being replaced
        planned = sum(plan.loads.values()) if plan else 0.0
        share = busy[name] / span_s if name in queues else None
        tier, device = (plan.tier, str(plan.device)) if plan else ("", "")
        yield WorkerRow(name, tier, state, planned, share, int(queues.get(name, 0)), device, now.reasons.get(name, ""))


def _operators(now: Scrape, increase: _Increase, span_s: float) -> Iterator[OperatorRow]:
    """One row per operator, by name; with all variants that its workers run."""
    variants: dict[str, dict[str, None]] = defaultdict(dict)
    workers: dict[str, set[str]] = defaultdict(set)
    for labels, _ in now.of("jellybean_requests_total"):
        variants[labels["operator"]][labels["variant"]] = None
        workers[labels["operator"]].add(labels["worker"])
    done, failed = (_by("operator", increase.of(f"jellybean_{name}_total")) for name in ("requests", "failures"))
    runs, busy = (_by("operator", increase.of(f"jellybean_{name}_total")) for name in ("runs", "busy_seconds"))
    queues = _by("operator", now.of("jellybean_queue"))
    for name, own in sorted(variants.items()):
        batch = done[name] / runs[name] if runs.get(name) else None
        share = busy[name] / span_s / len(workers[name])
        rates = done[name] / span_s, failed[name] / span_s
        variant, queue = " + ".join(sorted(own)), int(queues.get(name, 0))
        yield OperatorRow(name, variant, len(workers[name]), *rates, batch, share, queue)


def _refused(now: Scrape) -> Iterator[str]:
    """Messages that workers had no right to send to each other; what a gateway refused is told with the worker."""
    for labels, count in now.of("jellybean_refused_claims_total"):
        if count:
            sender = labels["sender"]
            yield f"{labels['worker']} refused {count:.0f} messages of {sender}: by the plan it has no right to them"


def _expiring(now: Scrape) -> Iterator[ExpiringCertificate]:
    lifetimes_s = _by("process", now.of("jellybean_certificate_lifetime_seconds"))
    expiries = _by("process", now.of("jellybean_certificate_expires_timestamp_seconds"))
    for process, expires_unix_s in sorted(expiries.items(), key=lambda item: item[1]):
        left_s = expires_unix_s - now.at_unix_s
        if left_s < EXPIRING_SHARE * lifetimes_s.get(process, 0.0):
            yield ExpiringCertificate(process, expires_unix_s, left_s)


def _links(now: Scrape, increase: _Increase, span_s: float) -> Iterator[LinkRow]:
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for prefix in ("jellybean", "jellybean_gateway"):
        for labels, grown in increase.of(f"{prefix}_link_bytes_total"):
            found[labels["tier"], labels["to_tier"]][0] += grown / span_s
        for labels, value in now.of(f"{prefix}_link_bytes_total"):
            found[labels["tier"], labels["to_tier"]][1] += value
        for labels, grown in increase.of(f"{prefix}_network_cost_usd_total"):
            found[labels["tier"], labels["to_tier"]][2] += grown / span_s * 3600
    for (tier, to_tier), figures in sorted(found.items()):
        yield LinkRow(tier, to_tier, *figures)
