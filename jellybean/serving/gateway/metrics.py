"""Prometheus metrics of a gateway, read when scraped, so that requests pay nothing for them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from jellybean.ledger.columns import LATENCY_BOUNDS_S
from jellybean.serving.gateway.audits.audits import AuditCounters, AuditOutcome
from jellybean.serving.gateway.gateway import WORKER_STATES, Gateway
from jellybean.serving.gateway.workflow_metrics import own_metrics
from jellybean_agent import (
    Admission,
    CertificateFolder,
    PlanView,
    admission_metrics,
    certificate_metrics,
    link_byte_metrics,
    metrics_text,
)


async def worker_metrics(gateways: Iterable[Gateway]) -> list[bytes]:
    """Metrics of every worker of these workflows that answers, each once, in Prometheus' text format."""
    texts: dict[str, bytes] = {}
    for gateway in gateways:
        texts |= await gateway.plans.worker_metrics()
    return list(texts.values())


async def workflow_worker_metrics(gateway: Gateway) -> list[bytes]:
    """As `worker_metrics`; of one of a plan's workflows, only its own operators, by its own names."""
    return [own_metrics(gateway.view, text) for text in await worker_metrics([gateway])]


class GatewaysCollector(Collector):
    """Metrics of the workflows of a gateway, with a label `workflow` if its plan is of several; and the workers' own.

    `workers()`: metrics of each worker in Prometheus' text format; none where workers are scraped themselves.
    `admission`: of its process. `certificate`: the gateway's own, None: it has none.
    `names_clients`: False where strangers may read them.
    `plan()`: of all workflows, whose budget is one; None where some of them are left out. `replicas`: number of the
    plan's gateways, each of which states figures of the whole plan.
    """

    def __init__(
        self,
        gateways: Iterable[Gateway],
        workers: Callable[[], Sequence[bytes]] = tuple,
        certificate: CertificateFolder | None = None,
        admission: Admission | None = None,
        *,
        names_clients: bool = True,
        plan: Callable[[], PlanView] | None = None,
        replicas: int = 1,
    ) -> None:
        self._replicas = replicas
        self._gateways, self._workers, self._certificate = gateways, workers, certificate
        self._names_clients, self._plan = names_clients, plan
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        texts = self._workers()  # before the cost, which they update
        families: dict[str, Metric] = {}
        gateways = tuple(self._gateways)
        for gateway in gateways:
            for family in GatewayCollector(gateway, names_clients=self._names_clients).collect():
                if gateway.view.workflow:
                    family.samples = [_of_workflow(gateway.view.workflow, sample) for sample in family.samples]
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()
        yield from workers_metrics(gateways)
        if self._plan is not None and (plan := self._plan()).workflows:
            yield from budget_metric(plan)
        if self._replicas > 1:
            text = "Gateways of the plan; each states the cost and the workers of all."
            yield GaugeMetricFamily("jellybean_gateway_replicas", text, value=self._replicas)
        own = metrics_text(_Process(self._certificate, self._admission))  # the workers have the same metrics
        yield from merged([own, *texts])


def _of_workflow(workflow: str, sample: Sample) -> Sample:
    return sample._replace(labels={"workflow": workflow, **sample.labels})


class GatewayCollector(Collector):
    """Of one workflow: requests by outcome, latencies, retries, requests in flight, cost, its ledger."""

    def __init__(self, gateway: Gateway, *, names_clients: bool = True) -> None:
        self._gateway, self._names_clients = gateway, names_clients

    def collect(self) -> Iterator[Metric]:
        status, counters = self._gateway.status(), self._gateway.counters
        requests = CounterMetricFamily("jellybean_gateway_requests", "Requests that ended.", labels=("outcome",))
        for kind, count in counters.ended.items():
            requests.add_metric((kind,), count)
        yield requests
        for name, text, value in (
            ("received", "Requests that arrived, whatever became of them.", counters.received),
            ("retries", "Attempts after a request's first.", status.retried),
            ("hedges", "Attempts beside a slow first.", status.hedged),
            ("left_out", "Times that a worker was left out.", status.left_out),
        ):
            yield CounterMetricFamily(f"jellybean_gateway_{name}", text, value=value)
        for name, text, value in (
            ("in_hand", "Requests in flight.", status.requests_in_hand),
            ("waiting", "Of these, requests that wait for a route.", status.waiting),
            ("kept", "Requests on disk, to be answered eventually.", status.kept),
            ("kept_bytes", "Bytes of the spool.", status.kept_bytes),
        ):
            yield GaugeMetricFamily(f"jellybean_gateway_{name}", text, value=value)
        text, oldest_s = "Age of the oldest request on disk.", self._gateway.kept_oldest_s()
        yield GaugeMetricFamily("jellybean_gateway_kept_oldest_seconds", text, value=oldest_s)
        if self._gateway.view.figures.slo_latency_p99_s is not None:
            text = "Answers later than the plan's p99 target."
            yield CounterMetricFamily("jellybean_gateway_over_target", text, value=counters.over_target)
        if self._gateway.view.audit is not None:
            yield audit_metric(self._gateway.audits.counters)
        yield self._latency()
        plans = self._gateway.plans
        yield from plan_metrics(plans.served.view)
        labels = ("source", "tier", "to_tier")
        yield from link_byte_metrics(
            "jellybean_gateway", labels, list(plans.served.bytes_sent.items()), plans.served.view
        )
        cost = CounterMetricFamily("jellybean_gateway_cost_usd", "Of all plans since the start.", labels=("of",))
        cost.add_metric(("workers",), plans.costs.workers_usd)
        cost.add_metric(("links",), plans.costs.links_usd)
        yield cost
        text, price = "Of the workers of all plans that are served.", plans.costs.price_usd_per_h
        yield GaugeMetricFamily("jellybean_gateway_price_usd_per_h", text, value=price)
        yield from self._gateway.ledger_metrics(self._names_clients)

    def _latency(self) -> Metric:
        counters = self._gateway.counters
        bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, itertools.accumulate(counters.latencies), strict=True))
        text = "From the call to its answer."
        return HistogramMetricFamily("jellybean_gateway_latency_seconds", text, buckets, counters.answered_s)


def workers_metrics(gateways: Iterable[Gateway]) -> Iterator[Metric]:
    """Workers by state, and which are ready; one that workflows share counts once, by the worst of its states.

    And the claims of each that were refused.
    """
    states: dict[str, str] = {}
    refused: dict[str, int] = {}
    for gateway in gateways:
        refused |= gateway.plans.served.claims.counts  # all workflows count together
        for worker, state in gateway.status().workers.items():
            states[worker] = max(state, states.get(worker, state), key=WORKER_STATES.index)
    counts = Counter(states.values())
    found = GaugeMetricFamily("jellybean_gateway_workers", "Workers by state.", labels=("state",))
    for state in WORKER_STATES:
        found.add_metric((state,), counts[state])
    yield found
    ready = GaugeMetricFamily("jellybean_gateway_worker_ready", "1: requests are sent to it.", labels=("worker",))
    for worker, state in states.items():
        ready.add_metric((worker,), state == "ready")
    yield ready
    text = "Claims of a worker beyond the plan."
    claims = CounterMetricFamily("jellybean_gateway_refused_claims", text, labels=("worker",))
    for worker, count in refused.items():
        claims.add_metric((worker,), count)
    yield claims


class _Process(Collector):
    """The expiry of the gateway's own certificate, and what its process admits."""

    def __init__(self, certificate: CertificateFolder | None, admission: Admission | None) -> None:
        self._certificate, self._admission = certificate, admission

    def collect(self) -> Iterator[Metric]:
        yield from certificate_metrics("gateway", self._certificate)
        if self._admission is not None:
            yield from admission_metrics("gateway", self._admission)


def audit_metric(counters: AuditCounters) -> Metric:
    """Audits that ended, by outcome; of a metric with parts, an audit agrees and differs in parts too."""
    found = CounterMetricFamily("jellybean_gateway_audits", "Audits that ended.", labels=("outcome",))
    compared = counters.ended[AuditOutcome.COMPARED]
    for outcome, count in (
        ("agreed", counters.agreed),
        ("differed", compared - counters.agreed),
        ("shed", counters.ended[AuditOutcome.SHED]),
        ("lost", counters.ended[AuditOutcome.LOST]),
    ):
        found.add_metric((outcome,), count)
    return found


def plan_metrics(view: PlanView) -> Iterator[Metric]:
    """What the plan was made for, and what it costs; a target that the plan does not have has no metric."""
    plan = view.figures
    info = GaugeMetricFamily("jellybean_plan_info", "The plan that is served.", labels=("workflow", "plan", "proof"))
    info.add_metric((view.served_name, view.hash, plan.proof), 1)
    yield info
    for name, text, value in (
        ("plan_requests_per_second", "Rate that the plan was made for.", plan.rate_per_s),
        ("plan_accuracy_percent", "Accuracy of the plan, by the profiles.", plan.accuracy),
        ("plan_cost_usd_per_h", "Planned cost.", plan.cost_usd_per_h),
        ("plan_bound_usd_per_h", "Proven: no plan costs less.", plan.bound_usd_per_h),
        ("plan_gap_ratio", "By how much of its cost the plan may be above the optimum.", plan.gap),
        ("slo_latency_p99_seconds", "Target.", plan.slo_latency_p99_s),
        ("slo_accuracy_percent", "Target: at least this.", plan.slo_mean_accuracy or plan.slo_accuracy),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"jellybean_{name}", text, value=value)
    yield from budget_metric(view)


def budget_metric(view: PlanView) -> Iterator[Metric]:
    """The target of a plan's cost, if it has one. Several workflows have one together, and none of their own."""
    budget = view.figures.slo_budget_usd_per_h
    if budget is not None:
        yield GaugeMetricFamily("jellybean_slo_budget_usd_per_h", "Target: at most this.", value=budget)


def merged(texts: Sequence[bytes]) -> Iterator[Metric]:
    """The metrics of several processes (Prometheus' text format), with each metric family once."""
    families: dict[str, Metric] = {}
    for text in texts:
        for family in text_string_to_metric_families(text.decode()):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            families[family.name].samples += family.samples
    yield from families.values()
