"""`top` of several workflows: each one's part of what all cost and do, and a workflow that leaves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from jellybean.documents import load_any_project
from jellybean.planning import plan_project, require_plan
from jellybean.serving import Client, Endpoint, Scrape, ServingError, Watcher, parse, render, top_of, worst_p99_s
from jellybean_agent import PlanFigures, plan_view, workflow_views
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import to_document
from tests.support.two_scales import make_two_scales

SECONDS = 10.0
USD = {"shop": 0.02, "yard": 0.01}  # for the bytes that workers sent, since the scrape before
RUNS = {"shop": 40, "yard": 20}
AUDITS = {"agreed": 19.0, "differed": 1.0, "shed": 2.0, "lost": 0.0}


def figures(rate_per_s: float = 1.0) -> PlanFigures:
    return PlanFigures({"x": rate_per_s}, rate_per_s, 1.0, None, None, "optimal", None, None, None, None, False)


def scrape(at_s: float, share: float) -> Scrape:
    """What is told once `share` of all requests are answered."""
    lines = ["# TYPE jellybean_requests counter"]
    lines += [
        f'jellybean_requests_total{{operator="{name}/last",variant="v",worker="server-1"}} {share * RUNS[name]}'
        for name in USD
    ]
    lines += ["# TYPE jellybean_network_cost_usd counter"]
    lines += [
        f'jellybean_network_cost_usd_total{{operator="{name}/first",variant="v",worker="box-1",tier="edge",'
        f'to_tier="cloud"}} {share * usd}'
        for name, usd in USD.items()
    ]
    lines += ["# TYPE jellybean_gateway_network_cost_usd counter"]
    lines += [
        f'jellybean_gateway_network_cost_usd_total{{workflow="{name}",source="x",tier="edge",to_tier="cloud"}} {share}'
        for name in USD
    ]
    lines += [f'jellybean_gateway_price_usd_per_h{{workflow="{name}"}} 0.1' for name in USD]
    lines += ["# TYPE jellybean_gateway_audits counter"]
    lines += [
        f'jellybean_gateway_audits_total{{workflow="shop",outcome="{outcome}"}} {share * count}'
        for outcome, count in AUDITS.items()
    ]
    lines += ['jellybean_started_timestamp_seconds{worker="server-1"} 5.0']
    names = {name: figures() for name in USD}
    return Scrape(at_s, parse("\n".join(lines) + "\n"), workflow="two", workflows=names, figures=figures(2.0))


def test_the_cost_of_workflows_adds_up_to_that_of_all() -> None:
    top = top_of(scrape(0.0, 0.0), scrape(SECONDS, 1.0))
    each = {one.workflow: one for one in top.workflows}
    assert each.keys() == USD.keys()
    for name, usd in USD.items():
        assert each[name].usd_per_h == pytest.approx(0.1 + (1.0 + usd) / SECONDS * 3600)
    assert top.usd_per_h == pytest.approx(sum(one.usd_per_h for one in top.workflows))
    assert top.network_usd_per_h == pytest.approx(sum(one.network_usd_per_h for one in top.workflows))


def test_each_workflow_has_its_operators_by_its_own_names() -> None:
    top = top_of(scrape(0.0, 0.0), scrape(SECONDS, 1.0))
    assert [row.operator for row in top.operators] == ["shop/last", "yard/last"]
    for one in top.workflows:
        assert [(row.operator, row.rate_per_s) for row in one.operators] == [("last", RUNS[one.workflow] / SECONDS)]
        assert "jellybean_started_timestamp_seconds" not in scrape(0.0, 0.0).of_workflow(one.workflow).samples


def test_audits_are_those_of_their_workflow() -> None:
    top = top_of(scrape(0.0, 0.0), scrape(SECONDS, 1.0))
    assert {one.workflow: one.audits for one in top.workflows} == {"shop": AUDITS, "yard": {}}
    output = io.StringIO()
    Console(file=output, width=100).print(render(top))
    assert "shop: audits since the start: 20 compared, 95.00 % as the reference; 2 shed\n" in output.getvalue()
    assert "yard: audits" not in output.getvalue()


def answered(at_s: float, counts: dict[str, tuple[int, int]]) -> Scrape:
    """By workflow: answers within 100 ms, and within 200 ms. Names of workflows are not known, as the operator's."""
    lines = ["# TYPE jellybean_gateway_latency_seconds histogram"]
    for name, (fast, every) in counts.items():
        buckets = {"0.1": fast, "0.2": every, "+Inf": every}
        of = f'workflow="{name}",' if name else ""
        lines += [f'jellybean_gateway_latency_seconds_bucket{{{of}le="{le}"}} {n}' for le, n in buckets.items()]
    return Scrape(at_s, parse("\n".join(lines) + "\n"))


def test_latencies_of_workflows_are_one_histogram_and_the_worst_p99_is_one_workflow_s() -> None:
    before = answered(0.0, {"shop": (0, 0), "yard": (5, 5)})
    now = answered(SECONDS, {"shop": (900, 900), "yard": (5, 105)})
    top = top_of(before, now)
    assert top.latency_p50_s == pytest.approx(0.1 * 500 / 900)
    assert top.latency_p99_s == pytest.approx(0.1 + 0.1 * 90 / 100), "the 990th of 1,000 answers"
    assert worst_p99_s(before, now) == pytest.approx(0.1 + 0.1 * 99 / 100), "yard's"
    assert worst_p99_s(now, now) is None
    one = answered(0.0, {"": (0, 0)}), answered(SECONDS, {"": (90, 100)})
    assert worst_p99_s(*one) == top_of(*one).latency_p99_s == pytest.approx(0.19)


def test_a_workflow_that_leaves_between_two_calls_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = json.dumps(to_document(require_plan(plan_project(load_any_project(make_two_scales(tmp_path / "two"))))))
    assert workflow_views(json.loads(plan)).keys() == USD.keys()
    status = gateway_pb2.StatusResponse(workflow="barn", plan="of before")
    assert plan_view(json.loads(plan)).hash != status.plan
    monkeypatch.setattr(Client, "status", lambda _: status)
    monkeypatch.setattr(Client, "metrics", lambda _: "")
    monkeypatch.setattr(Client, "plan", lambda _: plan)
    with pytest.raises(ServingError, match="the plan that has taken over leaves barn out: it serves shop, yard"):
        Watcher(tmp_path, Endpoint("127.0.0.1:9"), "barn").scrape()
