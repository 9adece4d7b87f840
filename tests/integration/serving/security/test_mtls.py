"""Mutual TLS between real processes: who is refused, who may call what, and certificates renewed under load."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean.serving import Client, RequestError, ServingError, open_authority, parse, request_of
from jellybean.serving.errors import LaunchError
from jellybean_agent import (
    CA_FILE,
    CERTIFICATE_FILE,
    PRIVATE_KEY_FILE,
    CertificateFolder,
    Identity,
    InferenceService,
    PlanViewError,
    Policy,
    Role,
    Transport,
    read_credentials,
)
from jellybean_agent.security.identity import SENDER_KEY, allowed_roles
from jellybean_agent.transport.channels import CHANNEL_OPTIONS
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from jellybean_protos.gateway.v1 import gateway_pb2_grpc
from jellybean_protos.inference.v2 import inference_pb2, inference_pb2_grpc
from tests.support.ports import free_port
from tests.support.tiny_models import chain
from tests.support.tls_run import WORKFLOW, TlsRun, tls_run
from tests.support.waiting import wait_until

ONES = {"x": np.ones((1, 4), np.float32)}
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}).encode()
HAS_HTTP = importlib.util.find_spec("aiohttp") is not None
needs_http = pytest.mark.skipif(not HAS_HTTP, reason="HTTP is an extra: pip install 'jellybean-serving[http]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRun]:
    root = tmp_path_factory.mktemp("mtls")
    with tls_run(root, chain(root), ("edge-1", "cloud-1"), renew_s=1.0, has_http=HAS_HTTP) as found:
        yield found


def secure(run: TlsRun, address: str, folder: Path | None, peer: Identity) -> grpc.Channel:
    """A channel with the certificate in a folder, or none."""
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", peer.tls_name)]
    ca = (run.root / "ca" / CA_FILE).read_bytes()
    pair = (
        (None, None)
        if folder is None
        else ((folder / PRIVATE_KEY_FILE).read_bytes(), (folder / CERTIFICATE_FILE).read_bytes())
    )
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, *pair), options)


def healthy(channel: grpc.Channel) -> grpc.StatusCode:
    """What the call that everybody with a certificate may make ends with."""
    with channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_requests_flow_over_tls(run: TlsRun) -> None:
    with run.client() as client:
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


KINDS = ["plaintext", "none", "rogue", "expired", "other workflow", "no identity", "right"]


def certificate_of(run: TlsRun, folder: Path, kind: str) -> Path | None:
    """A caller's certificate, as its kind says."""
    me = Identity(WORKFLOW, Role.ADMIN, "mallory")
    if kind in ("plaintext", "none"):
        return None
    if kind == "rogue":
        open_authority(folder / "rogue").equip(folder / "mine", me)
    elif kind == "expired":
        run.authority.equip(folder / "mine", me, life_s=-1.0)
    elif kind == "other workflow":
        run.authority.equip(folder / "mine", dataclasses.replace(me, workflow="other"))
    elif kind == "no identity":
        run.authority.equip(folder / "mine", Identity("", Role.ADMIN, "mallory"))
    else:
        run.authority.equip(folder / "mine", me)
    return folder / "mine"


@pytest.mark.parametrize("target", ["", "edge-1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix(run: TlsRun, tmp_path: Path, target: str, kind: str) -> None:
    """Against the gateway and an agent: only a certificate of this workflow, still good, of this authority."""
    address, peer = run.addresses[target], Identity(WORKFLOW, Role.AGENT if target else Role.GATEWAY, target)
    folder = certificate_of(run, tmp_path, kind)
    plain = grpc.insecure_channel(address, CHANNEL_OPTIONS) if kind == "plaintext" else None
    wanted = {
        "right": grpc.StatusCode.OK,
        "other workflow": grpc.StatusCode.PERMISSION_DENIED,
        "no identity": grpc.StatusCode.UNAUTHENTICATED,
    }
    assert healthy(plain or secure(run, address, folder, peer)) is wanted.get(kind, grpc.StatusCode.UNAVAILABLE)


def connection_of(port: int, bundle: bytes, folder: Path | None) -> http.client.HTTPSConnection:
    """A connection that believes an authority, with the certificate in a folder, or none."""
    context = ssl.create_default_context(cadata=bundle.decode())
    if folder is not None:
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / PRIVATE_KEY_FILE)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)


def asked(connection: http.client.HTTPConnection, *, closes: bool = True) -> tuple[int, Any]:
    """One request over HTTP: status and answer."""
    try:
        connection.request("POST", "/v2/models/tiny/infer", BODY)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        if closes:
            connection.close()


@needs_http
@pytest.mark.parametrize("kind", [*KINDS, "client", "agent", "gateway"])
def test_the_matrix_over_http(run: TlsRun, tmp_path: Path, kind: str) -> None:
    """As over gRPC: who has no certificate of this authority gets no answer, who may not ask is told so."""
    if kind in ("client", "agent", "gateway"):
        folder = run.certificate(Role(kind), {"agent": "cloud-1", "gateway": ""}.get(kind, "carol"))
    else:
        folder = certificate_of(run, tmp_path, kind)
    connection = (
        http.client.HTTPConnection("127.0.0.1", run.http_port, timeout=20)
        if kind == "plaintext"
        else connection_of(run.http_port, run.authority.bundle, folder)
    )
    if kind in ("plaintext", "none", "rogue", "expired"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asked(connection)
        return
    status, answer = asked(connection)
    if kind in ("right", "client"):
        assert (status, answer["outputs"][0]["data"]) == (200, [6, 6, 6, 6])
    else:
        told = {"other workflow": (403, "is of workflow other"), "no identity": (401, "states one identity")}
        wanted, reason = told.get(kind, (403, "may not call /inference.GRPCInferenceService/ModelInfer"))
        assert status == wanted
        assert reason in answer["error"]


@needs_http
@pytest.mark.parametrize(
    ("host", "transport", "told"),
    [
        ("127.0.0.1", Transport(WORKFLOW), "TCP needs a certificate"),
        ("0.0.0.0", Transport(WORKFLOW, insecure=True), "works on 127.0.0.1 and"),
    ],
)
def test_http_without_tls_needs_a_word_and_stays_on_this_machine(host: str, transport: Transport, told: str) -> None:
    from jellybean.serving.http.inference_http import serve_http

    served: Any = None

    async def serve() -> None:
        policy = Policy(WORKFLOW, ())
        async with serve_http(InferenceService(served), (host, free_port()), transport, policy):
            raise AssertionError("it is served")

    with pytest.raises(PlanViewError, match=told):
        asyncio.run(serve())


def test_a_server_with_another_workers_certificate_is_not_talked_to(run: TlsRun) -> None:
    """Who dials cloud-1 and reaches edge-1 has reached nobody."""
    folder = CertificateFolder(run.certificate(Role.ADMIN, "root"))

    async def describe(worker: str) -> agent_pb2.AgentStatus:
        async with Transport(WORKFLOW, folder).channel(run.addresses["edge-1"], worker) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)
            return await stub.Describe(agent_pb2.DescribeRequest(), timeout=10)

    assert asyncio.run(describe("edge-1")).worker == "edge-1"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(describe("cloud-1"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def agent(channel: grpc.Channel) -> agent_pb2_grpc.AgentStub:
    return agent_pb2_grpc.AgentStub(channel)


def deliver(channel: grpc.Channel, *metadata: tuple[str, str]) -> agent_pb2.Credit:
    return next(agent(channel).Deliver(iter(()), metadata=metadata, timeout=10), agent_pb2.Credit())


CALLS: dict[str, tuple[str, Any]] = {
    "/jellybean.agent.v1.Agent/Deliver": ("edge-1", deliver),
    "/jellybean.agent.v1.Agent/Describe": ("edge-1", lambda c: agent(c).Describe(agent_pb2.DescribeRequest())),
    "/jellybean.agent.v1.Agent/Drain": ("edge-1", lambda c: agent(c).Drain(agent_pb2.DrainRequest())),
    "/jellybean.gateway.v1.Gateway/Infer": (
        "",
        lambda c: gateway_pb2_grpc.GatewayStub(c).Infer(request_of(ONES), timeout=10),
    ),
    "/jellybean.gateway.v1.Gateway/Drain": (
        "",
        lambda c: gateway_pb2_grpc.GatewayStub(c).Drain(agent_pb2.DrainRequest(), timeout=10),
    ),
    "/inference.GRPCInferenceService/ServerReady": (
        "edge-1",
        lambda c: inference_pb2_grpc.GRPCInferenceServiceStub(c).ServerReady(inference_pb2.ServerReadyRequest()),
    ),
}


@pytest.mark.parametrize("role", list(Role))
def test_who_may_call_what(run: TlsRun, role: Role) -> None:
    """Every method of the table by every role; those that would end the run only by who may not."""
    folder = run.certificate(role, {Role.AGENT: "cloud-1", Role.GATEWAY: ""}.get(role, "carol"))
    for method, (target, call) in CALLS.items():
        peer = Identity(WORKFLOW, Role.AGENT if target else Role.GATEWAY, target)
        may = role in allowed_roles(method)
        if may and method.endswith("/Drain"):
            continue
        with secure(run, run.addresses[target], folder, peer) as channel:
            if may:
                call(channel)
                continue
            with pytest.raises(grpc.RpcError) as caught:
                call(channel)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, method
            assert "may not call" in caught.value.details()


def test_an_agent_speaks_for_itself_only(run: TlsRun) -> None:
    peer = Identity(WORKFLOW, Role.AGENT, "edge-1")
    for name, said, told in (("cloud-1", "", "says that it is"), ("moon-1", "moon-1", "no worker of the plan")):
        folder = run.certificate(Role.AGENT, name)
        channel = secure(run, run.addresses["edge-1"], folder, peer)
        with channel, pytest.raises(grpc.RpcError, match=told):
            deliver(channel, (SENDER_KEY, said))


def test_the_gateways_metrics_have_the_expiry_of_each_processs_certificate(run: TlsRun) -> None:
    with run.client(Role.ADMIN, "root") as client:
        found = parse(client.metrics())["jellybean_certificate_expires_timestamp_seconds"]
    for name in run.addresses:
        folder = run.root / "certs" / WORKFLOW / ("agent" if name else "gateway") / (name or "gateway")
        assert found[(("process", name or "gateway"),)] == pytest.approx(read_credentials(folder).expires_unix_s)


def test_a_client_may_not_drain_and_needs_a_certificate(run: TlsRun) -> None:
    with run.client() as client, pytest.raises(RequestError, match="client alice may not call"):
        client.drain(0.0)
    with pytest.raises(ServingError, match="no such file"):
        Client(run.gateway, tls=run.root / "nothing")
    with pytest.raises(ServingError, match=r"--insecure works on 127\.0\.0\.1 and"):
        Client("gateway.example:7000")


class Load:
    """Requests over gRPC and HTTP without a pause, until it is over."""

    def __init__(self, run: TlsRun) -> None:
        self._run, self.over = run, threading.Event()
        self.failures: list[str] = []
        self.answered: list[Any] = []
        self.statuses: list[int] = []
        self.certificates: list[bytes] = []  # that the gateway showed over HTTP

    def grpc(self) -> None:
        with self._run.client() as client:
            while not self.over.wait(0.005):
                try:
                    self.answered.append(client.infer(ONES)["triple"].tolist())
                except RequestError as error:
                    self.failures.append(str(error))

    def http(self) -> None:
        mine = self._run.certificate(Role.CLIENT, "bob")  # once: the authority before goes on being believed
        while not self.over.is_set():
            connection = connection_of(self._run.http_port, self._run.authority.bundle, mine)
            with contextlib.closing(connection):
                connection.connect()
                self.certificates.append(connection.sock.getpeercert(binary_form=True))
                while connection.sock is not None and not self.over.wait(0.005):  # the gateway ends those of the age
                    try:
                        self.statuses.append(asked(connection, closes=False)[0])
                    except OSError as error:
                        self.failures.append(str(error))
                        break


def test_rotation_keeps_serving(run: TlsRun) -> None:
    """Certificates and the authority are replaced under load: no request fails, and the old ones are gone after it."""
    load = Load(run)
    threads = [threading.Thread(target=target) for target in (load.grpc, load.http)[: 1 + HAS_HTTP]]
    for thread in threads:
        thread.start()
    try:
        for new in (True, False):  # first everybody believes the new authority, then it signs
            before, answered = {name: serial(run, name) for name in run.addresses}, len(load.answered)
            run.authority = open_authority(run.root / "ca", renew=new)
            run.renew()
            run.certificate(Role.CLIENT, "alice")
            wait_until(lambda before=before: all(serial(run, name) != before[name] for name in before))
            wait_until(lambda answered=answered: len(load.answered) > answered + 50)
        if HAS_HTTP:
            wait_until(lambda: load.certificates[-1] != load.certificates[0])
    finally:
        load.over.set()
        for thread in threads:
            thread.join()
    assert not load.failures
    assert len(load.answered) > 100
    assert load.answered == [[[6, 6, 6, 6]]] * len(load.answered)
    if HAS_HTTP:
        assert set(load.statuses) == {200}
    with contextlib.closing(run.client()) as client:
        assert client.status().state == "ready"


def serial(run: TlsRun, process: str) -> str:
    """What certificate a worker, or the gateway (""), shows in a handshake."""
    host, port = run.addresses[process].split(":")
    folder = run.certificate(Role.ADMIN, "observer")
    context = ssl.create_default_context(cafile=str(folder / CA_FILE))
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / PRIVATE_KEY_FILE)
    name = Identity(WORKFLOW, Role.AGENT if process else Role.GATEWAY, process).tls_name
    raw = socket.create_connection((host, int(port)), 10)
    with raw, context.wrap_socket(raw, server_hostname=name) as wrapped:
        shown = wrapped.getpeercert(binary_form=True)
    return f"{x509.load_der_x509_certificate(shown).serial_number:x}"


@pytest.mark.slow
def test_up_opens_no_port_that_was_not_asked_for_and_none_without_tls_or_a_word(tmp_path: Path, start) -> None:
    document = chain(tmp_path)
    with pytest.raises(LaunchError, match=r"--tls FOLDER .* or --insecure"):
        start(tmp_path, document, port=0, insecure=False)
    with pytest.raises(LaunchError, match=r"--tls FOLDER .* or --insecure"):
        start(tmp_path, document, port=None, http_port=free_port(), insecure=False)
    authority, http_port = open_authority(tmp_path / "ca"), free_port() if HAS_HTTP else 0
    authority.equip(tmp_path / "gateway", Identity(WORKFLOW, Role.GATEWAY), hosts=["127.0.0.1"])
    authority.equip(tmp_path / "alice", Identity(WORKFLOW, Role.CLIENT, "alice"))
    running = start(tmp_path, document, port=0, http_port=http_port, insecure=False, tls=tmp_path / "gateway")
    if HAS_HTTP:
        assert asked(connection_of(http_port, authority.bundle, tmp_path / "alice"))[0] == 200
    with Client(running.state.clients_address, tls=tmp_path / "alice") as client, Client.of(tmp_path) as owner:
        assert client.infer(ONES)["triple"].tolist() == owner.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]
    with pytest.raises(RequestError) as caught, Client(running.state.clients_address) as client:
        client.infer(ONES, timeout_s=20.0)
    assert caught.value.status == "UNAVAILABLE"
    assert running.down() == 0
    running = start(tmp_path, document, port=None, insecure=False)
    assert running.gateway_address.startswith("unix:")
    ports = [c for p in running.state.processes for c in psutil.Process(p.pid).net_connections("inet")]
    assert not ports
