"""Metrics of a gateway whose plan is of several workflows: what is each one's, and what is of all together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from jellybean.documents import load_any_project
from jellybean.planning import plan_project, require_plan
from jellybean.serving import Labels, parse
from jellybean.serving.gateway.gateway import WORKER_STATES, Gateway
from jellybean.serving.gateway.metrics import GatewaysCollector, worker_metrics, workflow_worker_metrics
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.workflow_metrics import own_metrics
from jellybean_agent import EmulatedLinks, PlanView, Transport, metrics_text, plan_view, workflow_views
from jellybean_solver import to_document
from tests.support.two_scales import make_two_scales

WORKER = b"""\
# TYPE jellybean_runs counter
jellybean_runs_total{operator="shop/last",worker="server-1"} 4.0
jellybean_runs_total{operator="yard/last",worker="server-1"} 2.0
jellybean_runs_total{operator="workshop/last",worker="server-1"} 1.0
# TYPE jellybean_started_timestamp_seconds gauge
jellybean_started_timestamp_seconds{worker="server-1"} 1.7e+09
"""
Samples = dict[str, dict[Labels, float]]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = make_two_scales(tmp_path_factory.mktemp("two") / "two")
    with (folder / "infrastructure.yaml").open("a", encoding="utf-8") as file:
        file.write("limits: {budget: 5 USD/h}\n")
    found: dict[str, Any] = json.loads(json.dumps(to_document(require_plan(plan_project(load_any_project(folder))))))
    return found


@pytest.fixture
def gateways(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Gateway]]]:
    """Makes the gateways of both workflows, inside an event loop; each worker answers with WORKER."""

    async def read(_plans: object) -> dict[str, bytes]:
        return {"server-1": WORKER}

    monkeypatch.setattr("jellybean.serving.gateway.plans.current_plan.CurrentPlan.worker_metrics", read)
    view = plan_view(document)
    with ExitStack() as stack:

        def make() -> list[Gateway]:
            network = WorkerNetwork(Transport(view.name, insecure=True), set(), emulate=False)
            peers = {"": "127.0.0.1:9", **dict.fromkeys(view.workers, "127.0.0.1:1")}
            links = [stack.enter_context(EmulatedLinks((), None)) for _ in view.workflows]
            views = workflow_views(document).values()
            return [Gateway(own, peers, link, network) for own, link in zip(views, links, strict=True)]

        yield make


def samples_of(gateways: Sequence[Gateway], workers: Sequence[bytes] = ()) -> Samples:
    return parse(metrics_text(GatewaysCollector(gateways, lambda: workers)).decode())


def test_one_of_several_gateways_says_of_how_many() -> None:
    found = parse(metrics_text(GatewaysCollector((), replicas=3)).decode())
    assert found["jellybean_gateway_replicas"] == {(): 3.0}
    assert "jellybean_gateway_replicas" not in parse(metrics_text(GatewaysCollector(())).decode())


def labels_of(samples: Samples, name: str, label: str) -> set[str]:
    return {dict(labels).get(label, "") for labels in samples[name]}


def test_each_workflow_s_series_have_its_name(gateways: Callable[[], list[Gateway]]) -> None:
    async def run() -> None:
        both = gateways()
        both[0].counters.receive("")
        samples = samples_of(both, await worker_metrics(both))
        assert samples["jellybean_gateway_received_total"] == {
            (("workflow", "shop"),): 1.0,
            (("workflow", "yard"),): 0.0,
        }
        assert labels_of(samples, "jellybean_gateway_latency_seconds_bucket", "workflow") == {"shop", "yard"}
        assert labels_of(samples, "jellybean_plan_info", "workflow") == {"shop", "yard"}
        assert labels_of(samples, "jellybean_runs_total", "operator") == {"shop/last", "yard/last", "workshop/last"}

    asyncio.run(run())


def test_the_last_workflow_that_a_plan_serves_keeps_its_name(gateways: Callable[[], list[Gateway]]) -> None:
    async def run() -> None:
        left = gateways()[:1]
        samples = samples_of(left, await worker_metrics(left))
        assert samples["jellybean_gateway_received_total"] == {(("workflow", "shop"),): 0.0}
        assert "shop/last" in labels_of(samples, "jellybean_runs_total", "operator")

    asyncio.run(run())


def test_of_a_workflow_that_is_asked_for_only_its_own_operators_by_its_own_names(
    gateways: Callable[[], list[Gateway]],
) -> None:
    async def run() -> None:
        _, yard = gateways()
        samples = samples_of([yard], await workflow_worker_metrics(yard))
        assert list(samples["jellybean_runs_total"].items()) == [((("operator", "last"), ("worker", "server-1")), 2.0)]
        assert labels_of(samples, "jellybean_gateway_received_total", "workflow") == {"yard"}

    asyncio.run(run())


@pytest.mark.parametrize("workflow", ["shop", "yard"])
def test_own_metrics_are_of_own_operators_and_of_the_worker(document: dict[str, Any], workflow: str) -> None:
    lines = own_metrics(workflow_views(document)[workflow], WORKER).decode().splitlines()
    own = [line for line in WORKER.decode().splitlines() if f'"{workflow}/' in line or "operator=" not in line]
    assert lines == [line.replace(f'"{workflow}/', '"') for line in own]
    assert len(lines) == 4


def test_all_metrics_are_a_sole_workflow_s_own(document: dict[str, Any]) -> None:
    view: PlanView = plan_view(document)
    assert own_metrics(view, WORKER) == WORKER


def test_the_budget_of_all_workflows_is_told_once(
    document: dict[str, Any], gateways: Callable[[], list[Gateway]]
) -> None:
    async def run() -> None:
        both = gateways()
        whole = GatewaysCollector(both, plan=lambda: plan_view(document))
        assert parse(metrics_text(whole).decode())["jellybean_slo_budget_usd_per_h"] == {(): 5.0}
        assert "jellybean_slo_budget_usd_per_h" not in samples_of(both[:1]), "which costs more than one of them"

    asyncio.run(run())


def test_a_worker_that_workflows_share_counts_once_in_its_worst_state(gateways: Callable[[], list[Gateway]]) -> None:
    async def run() -> None:
        both = gateways()
        for gateway in both:
            for worker in gateway.plans.served.workers.values():
                worker.state = "ready"
        shared = set(both[0].plans.served.workers) & set(both[1].plans.served.workers)
        both[1].plans.served.workers[min(shared)].state = "gone"
        workers = set(both[0].plans.served.workers) | set(both[1].plans.served.workers)
        assert samples_of(both)["jellybean_gateway_workers"] == {
            (("state", state),): count
            for state, count in {**dict.fromkeys(WORKER_STATES, 0), "ready": len(workers) - 1, "gone": 1}.items()
        }

    asyncio.run(run())
