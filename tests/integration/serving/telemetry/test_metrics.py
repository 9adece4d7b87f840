"""What is seen of a run: its metrics in one scrape, `jellybean top`."""

from __future__ import annotations

import io
import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from rich.console import Console
from ruamel.yaml import YAML

from jellybean.cli import run
from jellybean.serving import Client, LaunchSettings, RequestError, Running, Watcher, parse, render, request_of, top_of
from jellybean.serving.local import launcher
from jellybean.serving.local.replace_plan import apply
from jellybean.serving.top.overload import seconds
from jellybean_protos.gateway.v1 import gateway_pb2_grpc
from jellybean_protos.inference.v2 import inference_pb2, inference_pb2_grpc
from jellybean_solver import GIB, Link, Slo
from tests.support.paths import DOCS
from tests.support.ports import free_port
from tests.support.stopped_process import stopped
from tests.support.tiny_models import difference, make_plan, scale
from tests.support.waiting import wait_until

REQUESTS = 40
PLANNED_PER_S = 4.0  # far below what is offered, on a busy machine too
MAX_IN_FLIGHT = 7  # all of it for one client alone: a larger limit leaves something to others
SLO = Slo(latency_p99_s=0.01, accuracy=90.0, budget_usd_per_h=10.0)  # a p99 that two runs of 20 ms miss
SLOW_S = 0.02, 0.01  # a run, in the plan that is up and in one that may take over
BYTES = 16  # of a request's tensor
PRICE_USD_PER_GIB = GIB / 1e6  # a microdollar a byte


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Path, Running, int]]:
    """A run over two tiers: its folder, and the port of the gateway's metrics."""
    port = free_port()
    operators = {
        "double": (["x"], scale(folder / "models/double.onnx", 2.0)),
        "minus": (["double", "x"], difference(folder / "models/minus.onnx", "double", "x")),  # x crosses the link too
    }
    links = [Link("edge", "cloud", PRICE_USD_PER_GIB, None, 0.0)]
    route = {"double": "edge-1", "minus": "cloud-1"}
    plans = [
        make_plan(
            folder,
            operators,
            [(1.0, route)],
            sources={"x": "edge"},
            links=links,
            slow_s=slow_s,
            rate_per_s=PLANNED_PER_S,
            slo=SLO,
        )
        for slow_s in SLOW_S
    ]
    (folder / "next.json").write_text(json.dumps(plans[1]), encoding="utf-8")
    settings = LaunchSettings(port=0, insecure=True, metrics_port=port, max_in_flight=MAX_IN_FLIGHT)
    running = launcher.up(folder, plans[0], settings)
    try:
        yield folder, running, port
    finally:
        running.down(1.0)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running, int]]:
    with serving(tmp_path_factory.mktemp("seeing")) as found:
        yield found


def offer(running: Running, number: int) -> None:
    with Client(running.gateway_address) as client, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.infer({"x": np.ones((1, 4), np.float32)}), range(number)))
        with pytest.raises(RequestError):
            client.infer({"y": np.ones((1, 4), np.float32)})


@pytest.fixture
def new(tmp_path: Path) -> Iterator[tuple[Path, Running, int]]:
    with serving(tmp_path) as found:
        yield found


def test_the_gateways_port_tells_what_its_workers_do_too(new: tuple[Path, Running, int]) -> None:
    _, running, port = new
    offer(running, 4)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        text = response.read().decode()
    found = parse(text)
    edge = {"operator": "double", "variant": "only", "worker": "edge-1"}
    cloud = {"operator": "minus", "variant": "only", "worker": "cloud-1"}
    tiers = {"tier": "edge", "to_tier": "cloud"}
    for name, labels, value in (
        ("requests_total", edge, 4),
        ("requests_total", cloud, 4),
        ("queue", cloud, 0),
        ("planned_load", cloud, 0.02 * PLANNED_PER_S),
        ("price_usd_per_h", edge, 0.1),
        ("link_bytes_total", edge | tiers, 4 * BYTES),
        ("network_cost_usd_total", edge | tiers, 4 * BYTES * 1e-6),
        ("gateway_link_bytes_total", {"source": "x"} | tiers, 4 * BYTES),
        ("gateway_latency_seconds_count", {}, 4),
        ("gateway_requests_total", {"outcome": "answered"}, 4),
        ("gateway_requests_total", {"outcome": "client_error"}, 1),
        ("gateway_requests_total", {"outcome": "server_error"}, 0),
        ("gateway_received_total", {}, 5),
        ("plan_info", {"workflow": "tiny", "plan": running.state.plan, "proof": "optimal"}, 1),
        ("plan_requests_per_second", {}, PLANNED_PER_S),
        ("plan_cost_usd_per_h", {}, 0.2),
        ("plan_bound_usd_per_h", {}, 1.0),
        ("plan_gap_ratio", {}, 0.0),
        ("slo_latency_p99_seconds", {}, 0.01),
        ("slo_accuracy_percent", {}, 90.0),
        ("slo_budget_usd_per_h", {}, 10.0),
    ):
        assert found[f"jellybean_{name}"][tuple(sorted(labels.items()))] == pytest.approx(value), name
    assert text.count("# TYPE jellybean_requests_total counter") == 1
    with Client(running.gateway_address) as client, pytest.raises(RequestError, match="is for admin"):
        client.metrics()  # which the port of clients does not give


def test_every_outcome_is_counted_apart(up: tuple[Path, Running, int]) -> None:
    """While a worker stands still, requests stay in flight: as many as fit, later ones are shed."""
    folder, running, _ = up
    watcher, x = Watcher(folder), np.ones((1, 4), np.float32)
    before = watcher.scrape()
    edge = next(process.pid for process in running.state.processes if process.name == "edge-1")

    def infer(inputs: dict[str, np.ndarray], timeout_s: float | None = None) -> str:
        try:
            client.infer(inputs, timeout_s=timeout_s)
        except RequestError as error:
            return error.status
        return "OK"

    def in_flight() -> int:
        return client.status().requests_in_hand

    channel = grpc.insecure_channel(running.gateway_address)
    with Client(running.gateway_address) as client, ThreadPoolExecutor(MAX_IN_FLIGHT) as pool, channel:
        with stopped(edge):
            assert infer({"x": x}, timeout_s=1.5) == "DEADLINE_EXCEEDED"
            wait_until(lambda: not in_flight())
        with stopped(edge):
            call = gateway_pb2_grpc.GatewayStub(channel).Infer.future(request_of({"x": x}))
            wait_until(lambda: in_flight() == 1)
            call.cancel()
            wait_until(lambda: not in_flight())
        with stopped(edge):
            waiting = [pool.submit(infer, {"x": x}) for _ in range(MAX_IN_FLIGHT)]
            wait_until(lambda: in_flight() == MAX_IN_FLIGHT)
            assert [infer({"x": x}) for _ in range(3)] == ["RESOURCE_EXHAUSTED"] * 3
        assert [answer.result(20) for answer in waiting] == ["OK"] * MAX_IN_FLIGHT  # runs of those before are over
        assert infer({"y": x}) == "INVALID_ARGUMENT"
        unknown_model = inference_pb2.ModelInferRequest(model_name="nobody")
        with pytest.raises(grpc.RpcError):
            inference_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(unknown_model)

    top = top_of(before, watcher.scrape())
    assert {kind: round(per_s * top.window_s) for kind, per_s in top.outcomes_per_s.items()} == {
        "answered": MAX_IN_FLIGHT,
        "cancelled": 1,
        "late": 1,
        "shed": 3,
        "client_error": 2,
        "unavailable": 0,
        "server_error": 0,
    }
    assert round(top.offered_per_s * top.window_s) == MAX_IN_FLIGHT + 1 + 1 + 3  # client errors load no worker


def test_top_tells_rates_latency_load_links_and_cost(
    up: tuple[Path, Running, int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, running, _ = up
    watcher = Watcher(folder)
    before = watcher.scrape()
    offer(running, REQUESTS)
    top = top_of(before, watcher.scrape())
    assert top.answered_per_s * top.window_s == pytest.approx(REQUESTS)
    assert top.failed_per_s * top.window_s == pytest.approx(1)
    assert top.outcomes_per_s["client_error"] * top.window_s == pytest.approx(1)
    assert top.offered_per_s == pytest.approx(top.answered_per_s)
    assert (top.planned_per_s, top.target_p99_s) == (PLANNED_PER_S, SLO.latency_p99_s)
    assert top.latency_p50_s is not None
    assert top.latency_p99_s is not None
    assert 0.04 <= top.latency_p50_s <= top.latency_p99_s
    assert [(row.worker, row.tier, row.state) for row in top.workers] == [
        ("cloud-1", "cloud", "ready"),
        ("edge-1", "edge", "ready"),
    ]
    for row in top.workers:
        assert row.planned == pytest.approx(0.02 * PLANNED_PER_S)
        assert row.busy is not None
        assert REQUESTS * 0.02 * 0.99 <= row.busy * top.window_s <= top.window_s
    assert [(row.operator, row.variant, row.workers, row.batch) for row in top.operators] == [
        ("double", "only", 1, 1.0),
        ("minus", "only", 1, 1.0),
    ]
    (link,) = top.links
    assert (link.tier, link.to_tier) == ("edge", "cloud")
    assert link.bytes_per_s * top.window_s == pytest.approx(2 * REQUESTS * BYTES)
    assert top.network_usd_per_h == pytest.approx(2 * REQUESTS * BYTES * 1e-6 / top.window_s * 3600)
    assert top.usd_per_h == pytest.approx(0.2 + top.network_usd_per_h)
    assert top.so_far_usd > link.bytes * 1e-6

    assert top.overload is not None
    offered, p99 = top.overload.reasons
    assert offered == f"{top.offered_per_s:.3g}/s offered, planned for 4/s"
    assert p99 == f"p99 {seconds(top.latency_p99_s)}, target 10 ms"
    assert top.overload.command is not None
    words = shlex.split(top.overload.command)
    assert words[:5] == ["jellybean", "plan", str(folder), "--from", "running"]
    rate_per_s = float(words[6].removeprefix("sources.x.rate=").removesuffix("/s"))
    assert top.offered_per_s <= rate_per_s <= 1.1 * top.offered_per_s

    console = Console(width=110, record=True, file=io.StringIO())
    console.print(render(top))
    text = console.export_text()
    assert "worker    tier" in text
    assert "edge → cloud" in text
    assert f"{top.offered_per_s:.1f}/s offered (planned for 4/s)" in text
    assert "(target 10 ms)" in text
    assert f"{offered}; {p99}, so plan for more" in text
    assert len(max(text.splitlines(), key=len)) <= 110

    assert run(["top", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["workers"][0]["worker"] == "cloud-1"
    assert (shown["overload"], shown["planned_per_s"], shown["offered_per_s"]) == (None, PLANNED_PER_S, 0.0)
    assert shown["outcomes"]["answered"] >= REQUESTS
    assert run(["top", str(folder), "--once"]) == 0
    assert "USD so far" in capsys.readouterr().out


def test_top_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", str(tmp_path)]) == 1
    assert "nothing is up" in capsys.readouterr().err


def test_the_dashboard_asks_for_what_a_run_tells_and_the_docs_explain(
    up: tuple[Path, Running, int], capsys: pytest.CaptureFixture[str]
) -> None:
    _, running, port = up
    offer(running, 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        told = parse(response.read().decode())
    for name in ("expires_timestamp_seconds", "lifetime_seconds"):  # this run has no certificates
        told[f"jellybean_certificate_{name}"] = {(("process", "gateway"),): 0.0}
    told["jellybean_gateway_replicas"] = {(): 2.0}  # it has a single gateway, and no relay
    told["jellybean_relay_offers"] = {(("worker", "edge-1"),): 4.0}
    told["jellybean_relay_bytes_total"] = {(("worker", "edge-1"), ("direction", "to_worker")): 9.0}
    docs = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert run(["dashboard"]) == 0
    panels = json.loads(capsys.readouterr().out)["panels"]
    queries = [target for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    assert run(["dashboard", "--alerts"]) == 0
    rules = YAML(typ="safe").load(capsys.readouterr().out)
    assert run(["dashboard", "--alerts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rules
    group, operator = rules["groups"]
    every = [*group["rules"], *operator["rules"]]
    assert len({rule["alert"] for rule in every}) == len(every) >= 15
    for rule in every:
        assert rule["alert"] in docs
        assert rule["annotations"]["summary"]
    queries += [{"expr": rule["expr"], "legendFormat": ""} for rule in group["rules"]]
    for query in queries:
        expr, legend = query["expr"], query["legendFormat"]
        names = set(re.findall(r"jellybean_\w+", expr))
        assert names
        assert names <= told.keys(), expr
        labels = {name: {label for sample in told[name] for label, _ in sample} for name in names}
        for name, label in re.findall(r"(jellybean_\w+){(\w+)=", expr):
            assert label == "workflow" or label in labels[name], expr
        wanted = {word for by in re.findall(r"by \(([^)]*)\)", expr) for word in by.split(", ")}
        wanted |= set(re.findall(r"{{(\w+)}}", legend))
        wanted -= {"job", "instance", "namespace"}  # which Prometheus adds
        assert wanted - {"workflow"} <= set().union(*labels.values()), query  # a label of several workflows
        assert all(f"`{label}`" in docs for label in wanted)
    told_names = {re.sub("_(bucket|count|sum)$", "", name) for name in told if name.startswith("jellybean_")}
    assert not [name for name in told_names if f"`{name}`" not in docs]


@pytest.mark.slow
def test_the_cost_so_far_goes_on_over_a_plan_that_is_replaced(up: tuple[Path, Running, int]) -> None:
    folder, running, _ = up
    watcher = Watcher(folder)

    def cost() -> tuple[float, dict[str, float]]:
        look = watcher.scrape()
        return top_of(look, look).so_far_usd, {
            labels["of"]: usd for labels, usd in look.of("jellybean_gateway_cost_usd_total")
        }

    offer(running, 3)
    so_far_usd, before = cost()
    assert before["links"] >= 2 * 3 * BYTES * 1e-6
    assert apply(folder, json.loads((folder / "next.json").read_text(encoding="utf-8")))
    after_usd, after = cost()
    assert after_usd > so_far_usd
    assert after["workers"] > before["workers"]
    assert after["links"] == pytest.approx(before["links"])
    offer(running, 3)
    assert cost()[1]["links"] == pytest.approx(before["links"] + 2 * 3 * BYTES * 1e-6)
