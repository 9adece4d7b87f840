"""Streams between machines with mutual TLS: states move, only the gateway moves them, and a gateway's end is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from jellybean.serving import Chunk, RequestError
from jellybean_agent import CertificateFolder, Role, Transport, protocol_metadata
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from tests.support.streams_project import uninterrupted
from tests.support.tiny_models import make_plan, recurrent, scale
from tests.support.tls_run import TlsRun, tls_run

WORKERS = ("edge-1", "cloud-1", "cloud-2")
INPUTS = np.random.default_rng(3).normal(size=(12, 1, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRun]:
    root = tmp_path_factory.mktemp("tls-streams")
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "remember": (["double"], recurrent(root / "models/remember.onnx")),
    }
    routes = [(0.5, {"double": "edge-1", "remember": name}) for name in WORKERS[1:]]
    states = {"remember": (("state", "state_next"),)}
    with tls_run(root, make_plan(root, operators, routes, sources={"x": "edge"}, states=states), WORKERS) as found:
        yield found


def test_states_move_when_a_worker_drains_and_clients_share_no_streams(run: TlsRun) -> None:
    """Two clients use one name for their streams; the workers of both are drained one after the other."""
    answers: dict[str, list[np.ndarray]] = {"alice": [], "bob": []}
    with run.client(name="alice") as alice, run.client(name="bob") as bob:
        for index, x in enumerate(INPUTS):
            for name, client, sign in (("alice", alice, 1), ("bob", bob, -0.5)):
                chunk = Chunk("mine", begins=index == 0)
                answers[name].append(client.infer({"x": np.float32(sign) * x}, chunk=chunk)["remember"])
            if index == 5:
                run.processes["cloud-1"].send_signal(signal.SIGTERM)
                run.processes["cloud-1"].wait(60)
    np.testing.assert_allclose(np.concatenate(answers["alice"]), uninterrupted(INPUTS), atol=1e-6)
    np.testing.assert_allclose(np.concatenate(answers["bob"]), uninterrupted(np.float32(-0.5) * INPUTS), atol=1e-6)


@pytest.mark.parametrize("method", ["ReadState", "WriteState"])
@pytest.mark.parametrize(("role", "name"), [(Role.CLIENT, "alice"), (Role.AGENT, "edge-1"), (Role.ADMIN, "root")])
def test_only_the_gateway_may_move_states(run: TlsRun, method: str, role: Role, name: str) -> None:
    transport = Transport(certificate=CertificateFolder(run.certificate(role, name)))
    with transport.blocking_channel(run.addresses["cloud-2"], "cloud-2") as channel:
        stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
        state = agent_pb2.StreamState(operator="remember", stream="s", plan=str(run.document["hash"]))
        with pytest.raises(grpc.RpcError) as error:
            getattr(stub, method)(state, timeout=10.0, metadata=protocol_metadata())
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.slow
def test_a_gateway_that_was_killed_says_that_it_knows_no_streams(run: TlsRun) -> None:
    with run.client() as client:
        client.infer({"x": INPUTS[0]}, chunk=Chunk("mine", begins=True))
        run.processes[""].kill()
        run.processes[""].wait()
        run.start("")
        if run.processes["cloud-1"].poll() is not None:
            run.start("cloud-1")
        run.await_ready()
        with pytest.raises(RequestError) as error:
            client.infer({"x": INPUTS[1]}, chunk=Chunk("mine"))
        assert error.value.status == "NOT_FOUND"
        assert "or the gateway was started again. What its state was made of is lost: begin it anew" in str(error.value)
        again = client.infer({"x": INPUTS[1]}, chunk=Chunk("mine", begins=True))["remember"]
    np.testing.assert_allclose(again, uninterrupted(INPUTS[1:2]), atol=1e-6)
