"""A gateway that is started again after its plan was replaced: with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from jellybean.serving import Client, RequestError
from jellybean.serving.gateway.plans.replaced_plan import ReplacedPlan
from jellybean_solver.model.plan_document import Document
from tests.support.ports import free_port
from tests.support.tiny_models import make_plan, scale


class Processes:
    """On loopback ports, without the launcher."""

    def __init__(self, root: Path) -> None:
        self.root, self.running = root, dict[str, subprocess.Popen[bytes]]()
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in ("", "edge-1", "edge-2")}

    def start(self, name: str, plan: Path, *more: str) -> None:
        peers = self.root / "peers.json"
        peers.write_text(json.dumps(self.addresses), encoding="utf-8")
        module = "jellybean_agent" if name else "jellybean.serving.gateway_main"
        own = [f"--plan={plan}", f"--peers={peers}", f"--links={self.root}/links", "--insecure", *more]
        with (self.root / f"{name or 'gateway'}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", module, *own]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, *names: str) -> None:
        for name in names or list(self.running):
            process = self.running.pop(name)
            process.kill()
            process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.stop()


def plan(root: Path, worker: str, factor: float) -> Document:
    operators = {"times": (["x"], scale(root / f"{worker}/models/times.onnx", factor))}
    document = make_plan(root, operators, [(1.0, {"times": worker})], sources={"x": "edge"})
    (root / f"{worker}.json").write_text(json.dumps(document), encoding="utf-8")
    return document


def answer(client: Client) -> float:
    until = time.monotonic() + 60.0
    while True:
        try:
            return float(client.infer({"x": np.ones((1, 4), np.float32)}, timeout_s=5.0)["times"][0, 0])
        except RequestError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_the_plan_that_took_over_is_served_after_a_restart_too(tmp_path: Path, processes: Processes) -> None:
    plan(tmp_path, "edge-1", 2.0)
    new = plan(tmp_path, "edge-2", 3.0)
    own = (f"--replaced={tmp_path}/kept",)
    processes.start("", tmp_path / "edge-1.json", *own)
    edge = f"--listen={processes.addresses['edge-2']}", "--worker=edge-2", f"--root={tmp_path}/edge-2"
    processes.start("edge-2", tmp_path / "edge-2.json", *edge)
    with Client(processes.addresses[""]) as client:
        until = time.monotonic() + 60.0
        while True:  # until the gateway listens
            try:
                client.start_replacement(json.dumps(new), {"edge-2": processes.addresses["edge-2"]}, "", 60.0).result()
                break
            except grpc.RpcError:
                assert time.monotonic() < until
                time.sleep(0.05)
        assert answer(client) == 3.0
        processes.stop("")
        processes.start("", tmp_path / "edge-1.json", *own)
        assert answer(client) == 3.0
        assert client.status().plan == new["hash"]


def test_a_plan_that_is_given_anew_stands_before_one_that_replaced_another(tmp_path: Path) -> None:
    plan(tmp_path, "edge-1", 2.0)
    plan(tmp_path, "edge-2", 3.0)
    given, peers = tmp_path / "edge-1.json", tmp_path / "peers.json"
    peers.write_text('{"": "unix:/g", "edge-1": "unix:/a"}', encoding="utf-8")
    request = _request((tmp_path / "edge-2.json").read_bytes())
    ReplacedPlan.read(tmp_path / "kept", given, peers).keep(request)
    found = ReplacedPlan.read(tmp_path / "kept", given, peers)
    assert found.plan.read_bytes() == json.dumps(json.loads(request.plan)).encode()
    assert json.loads(found.peers.read_text(encoding="utf-8")) == {"": "unix:/g", "edge-2": "unix:/e"}
    plan(tmp_path, "edge-1", 5.0)
    assert ReplacedPlan.read(tmp_path / "kept", given, peers).plan == given
    (tmp_path / "kept/replaced.json").write_text("{", encoding="utf-8")
    assert ReplacedPlan.read(tmp_path / "kept", given, peers).plan == given


def _request(document: bytes):
    from jellybean_protos.gateway.v1 import gateway_pb2

    return gateway_pb2.ReplaceRequest(plan=document, peers={"edge-2": "unix:/e"})
