"""What a gateway measures stands beside what was planned, in the status of its resource."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from jellybean.operator import resource_definition
from jellybean.operator.measured import WINDOW_S
from jellybean.operator.reconcile import Reconciler
from jellybean_k8s import CRD_KIND, gateway_pod, gateway_pods
from jellybean_k8s.cluster import cluster
from tests.k8s_resource import resource
from tests.k8s_target import NEEDS_CONTAINERS, Target, define, mock_only

pytestmark = mock_only(NEEDS_CONTAINERS)
NOW = datetime.datetime(2026, 11, 27, 12, 0, tzinfo=datetime.UTC)


@dataclass
class Gateway:
    """The metrics of a gateway, served on a port here."""

    answered: int = 0
    received: int = 0
    paid_usd: float = 0.0
    port: int = 0
    asked: list[str] = field(default_factory=list)

    def text(self) -> str:
        below = 0.9 * self.answered  # of 100 ms; all others are below 200 ms
        return "\n".join(
            (
                "# TYPE jellybean_gateway_received counter",
                f"jellybean_gateway_received_total {self.received}",
                "# TYPE jellybean_gateway_requests counter",
                f'jellybean_gateway_requests_total{{outcome="answered"}} {self.answered}',
                "# TYPE jellybean_gateway_latency_seconds histogram",
                f'jellybean_gateway_latency_seconds_bucket{{le="0.1"}} {below}',
                f'jellybean_gateway_latency_seconds_bucket{{le="0.2"}} {self.answered}',
                f'jellybean_gateway_latency_seconds_bucket{{le="+Inf"}} {self.answered}',
                "# TYPE jellybean_gateway_cost_usd counter",
                f'jellybean_gateway_cost_usd_total{{of="workers"}} {self.paid_usd}',
                "",
            )
        )


@contextlib.contextmanager
def answering(gateway: Gateway) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gateway.asked.append(self.path)
            body = gateway.text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        gateway.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


class Operated:
    """A resource under a virtual clock."""

    def __init__(self, target: Target, gateway: dict[str, object] | None = None) -> None:
        """`gateway`: settings of the gateway in the resource."""
        self.target, self.now_s, self.said = target, 0.0, list[str]()
        define(target, resource_definition())
        found = resource()
        if gateway is not None:
            found["spec"]["kubernetes"]["gateway"] = gateway
        target.create(found)
        self.reconciler = Reconciler(
            target.cluster, lambda: (), clock=lambda: self.now_s, now=lambda: NOW, log=self.said.append
        )

    def look(self, after_s: float = 0.0) -> dict[str, object]:
        """The status after a reconciliation, some time later."""
        self.now_s += after_s
        there = self.target.cluster.get(CRD_KIND, "digits")
        assert there is not None
        self.reconciler.reconcile(there | {"apiVersion": "jellybean.dev/v1alpha1", "kind": CRD_KIND})
        return dict((self.target.cluster.get(CRD_KIND, "digits") or {})["status"])


@pytest.fixture
def operated(target: Target) -> Operated:
    return Operated(target)


def connect(operated: Operated, gateway: Gateway) -> str:
    """Have the deployed gateway's pod answer; its name."""
    name = str(gateway_pod(operated.target.cluster, "digits")[0]["metadata"]["name"])
    assert operated.target.server is not None
    operated.target.server.api.endpoints[name, 9090] = ("127.0.0.1", gateway.port)
    return name


def test_measured_figures_stand_beside_planned_ones(operated: Operated) -> None:
    first = operated.look()
    assert (first["requestsPerSecond"], first["costUsdPerHour"]) == (10, 0.1)
    assert "measured" not in first
    operated.target.well()
    with answering(gateway := Gateway()):
        connect(operated, gateway)
        assert "measured" not in operated.look(WINDOW_S)  # one reading tells no rate
        gateway.received, gateway.answered, gateway.paid_usd = 480, 480, 0.002
        assert "measured" not in operated.look(WINDOW_S / 2)
        found = operated.look(WINDOW_S / 2)
        assert found["measured"] == {
            "requestsPerSecond": 8.0,
            "latencyP99Seconds": 0.19,
            "costUsdPerHour": 0.12,
            "at": "2026-11-27T12:00:00Z",
        }
        assert gateway.asked == ["/metrics"] * 2
        assert operated.look(WINDOW_S)["measured"] == {  # nobody asked for a minute
            "requestsPerSecond": 0.0,
            "costUsdPerHour": 0.0,
            "at": "2026-11-27T12:00:00Z",
        }
        gateway.received, gateway.answered, gateway.paid_usd = 60, 60, 0.001  # it was started again
        assert operated.look(WINDOW_S)["measured"]["requestsPerSecond"] == 1.0  # type: ignore[index]


def test_the_figures_of_several_gateways_are_those_of_all_together(target: Target) -> None:
    """Each tells the requests that it answered, and the cost of the whole deployment."""
    operated = Operated(target, {"replicas": 2})
    operated.look()
    operated.target.well()
    names = [pod["metadata"]["name"] for pod in gateway_pods(operated.target.cluster, "digits")[0]]
    assert len(names) == 2
    assert operated.target.server is not None
    with answering(one := Gateway()), answering(other := Gateway()):
        for name, gateway in zip(names, (one, other), strict=True):
            operated.target.server.api.endpoints[name, 9090] = ("127.0.0.1", gateway.port)
        assert "measured" not in operated.look(WINDOW_S)
        one.received = one.answered = 480
        other.received = other.answered = 120
        one.paid_usd = other.paid_usd = 0.002
        found = operated.look(WINDOW_S)["measured"]
        assert found == {
            "requestsPerSecond": 10.0,
            "latencyP99Seconds": 0.19,
            "costUsdPerHour": 0.12,
            "at": "2026-11-27T12:00:00Z",
        }
        one.received = one.answered = one.paid_usd = 0  # it was started again
        other.received = other.answered = 180
        assert operated.look(WINDOW_S)["measured"]["requestsPerSecond"] == 1.0  # type: ignore[index]


def test_a_gateway_that_does_not_answer_takes_its_figures_away(operated: Operated) -> None:
    operated.look()
    operated.target.well()
    with answering(gateway := Gateway()):
        name = connect(operated, gateway)
        for after_s in (WINDOW_S, WINDOW_S):
            found = operated.look(after_s)
        assert "measured" in found
        assert operated.target.server is not None
        del operated.target.server.api.endpoints[name, 9090]
        for _ in range(3):
            assert "measured" not in operated.look(WINDOW_S)
    assert len([text for text in operated.said if text.startswith("nothing is measured: ")]) == 1


def test_an_operator_without_the_right_says_so_once(operated: Operated) -> None:
    operated.look()
    operated.target.well()
    operated.target.wire.fault = lambda method, path: 403 if path.endswith("/proxy/metrics") else None
    for _ in range(3):
        operated.look(WINDOW_S)
    assert [text for text in operated.said if "the operator's Role lacks pods/proxy" in text][1:] == []
    assert any("the operator's Role lacks pods/proxy" in text for text in operated.said)


def test_a_pod_that_answers_without_end_takes_no_memory_of_the_operator(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its image may be anybody's."""
    monkeypatch.setattr(cluster, "MAX_POD_ANSWER_BYTES", 1000)
    gateway = Gateway()
    gateway.text = lambda: "x" * 1001  # type: ignore[method-assign]
    operated.look()
    with answering(gateway):
        connect(operated, gateway)
        assert "measured" not in operated.look(WINDOW_S)
    assert any("answers with more than 1000 bytes" in text for text in operated.said)
