"""Rendered pods, run as processes here, fetch models, find each other, answer probes and clients, and leave well."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jellybean.planning import PlanFile
from jellybean.serving import Client
from jellybean_k8s import DeploymentSettings, ModelSource, deployed_plan, render
from jellybean_solver import from_document
from tests.integration.k8s.pods_here import cluster_here
from tests.support.command_line import jellybean
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.two_scales import FACTORS, make_two_scales
from tests.support.waiting import wait_until


@contextlib.contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The URL of a web server with a folder's files."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.func.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_commands_of_rendered_pods_serve_a_request_and_drain(tmp_path: Path) -> None:
    store = tmp_path / "store"
    plan = from_document(chain(store))
    with serving_files(store) as url:
        settings = DeploymentSettings({"cpu": "agent"}, "gateway", ModelSource(url=url), drain_s=5)
        with cluster_here(tmp_path / "pods", plan.name, render(deployed_plan(plan, settings))) as cluster:
            gateway = next(pod for pod in cluster.pods if pod.name.endswith("-gateway"))
            agents = [pod for pod in cluster.pods if pod is not gateway]
            gateway.start()
            wait_until(lambda: gateway.probe("livenessProbe"))
            assert gateway.probe("startupProbe")
            assert not gateway.probe("readinessProbe")  # its workers are not there
            for pod in agents:
                pod.start()
            wait_until(lambda: all(pod.probe("readinessProbe") for pod in cluster.pods))
            assert all(pod.probe(kind) for pod in cluster.pods for kind in ("startupProbe", "livenessProbe"))
            with Client(f"{gateway.address}:8001", tls=cluster.client_certificate()) as client:
                answer = client.infer({"x": np.array([[1, 2, 3, 4]], np.float32)})
            assert answer["triple"].tolist() == [[6, 12, 18, 24]]
            metrics = urllib.request.urlopen(f"http://{agents[0].address}:9090/metrics", timeout=60).read()
            assert b"jellybean_requests_total" in metrics
            metrics = urllib.request.urlopen(f"http://{gateway.address}:9090/metrics", timeout=60).read()
            assert b'jellybean_gateway_requests_total{outcome="answered"} 1.0' in metrics
            for pod in cluster.pods:
                assert pod.process is not None
                pod.process.terminate()
            grace = gateway.spec["terminationGracePeriodSeconds"]
            assert [pod.process.wait(grace) for pod in cluster.pods if pod.process] == [0, 0, 0]


@pytest.mark.slow
def test_pods_of_several_workflows_serve_each_under_its_name(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    jellybean("plan", str(folder))
    plan = PlanFile(folder).load().plan
    with serving_files(folder) as url:
        settings = DeploymentSettings({"cpu": "agent"}, "gateway", ModelSource(url=url), drain_s=5)
        with cluster_here(tmp_path / "pods", plan.name, render(deployed_plan(plan, settings))) as cluster:
            for pod in cluster.pods:
                pod.start()
            wait_until(lambda: all(pod.probe("readinessProbe") for pod in cluster.pods))
            gateway = next(pod for pod in cluster.pods if pod.name.endswith("-gateway"))
            address, row = f"{gateway.address}:8001", np.array([[1, 2, 3, 4]], np.float32)
            for name, factor in FACTORS.items():
                with Client(address, tls=cluster.client_certificate(), workflow=name) as client:
                    (answer,) = client.infer({"x": row}).values()
                    assert client.status().answered == 1
                assert np.array_equal(answer, row * factor)


@pytest.mark.slow
def test_a_gateway_pod_becomes_ready_and_serves_without_a_pod_that_is_never_started(tmp_path: Path) -> None:
    store = tmp_path / "store"
    operators = {
        "double": (["x"], scale(store / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(store / "models/triple.onnx", 3.0)),
    }
    routes = [(0.5, {"double": box, "triple": "cloud-1"}) for box in ("edge-1", "edge-2")]
    plan = from_document(make_plan(store, operators, routes, sources={"x": "edge"}))
    with serving_files(store) as url:
        settings = DeploymentSettings({"cpu": "agent"}, "gateway", ModelSource(url=url), drain_s=5)
        with cluster_here(tmp_path / "pods", plan.name, render(deployed_plan(plan, settings))) as cluster:
            (absent,) = (pod for pod in cluster.pods if pod.name.endswith("-edge-2"))
            for pod in cluster.pods:
                if pod is not absent:
                    pod.start()
            gateway = next(pod for pod in cluster.pods if pod.name.endswith("-gateway"))
            wait_until(lambda: gateway.probe("readinessProbe"))
            address, row = f"{gateway.address}:8001", np.array([[1, 2, 3, 4]], np.float32)
            with Client(address, tls=cluster.client_certificate()) as client:
                answers = [client.infer({"x": row})["triple"].tolist() for _ in range(10)]
                assert answers == [[[6, 12, 18, 24]]] * 10
                states = dict(client.status().workers)
                assert states == {"edge-1": "ready", "cloud-1": "ready", "edge-2": "starting"}
                absent.start()
                wait_until(lambda: client.status().state == "ready")
                assert client.infer({"x": row})["triple"].tolist() == [[6, 12, 18, 24]]
