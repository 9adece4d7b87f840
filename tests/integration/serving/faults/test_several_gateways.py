"""Two gateways of one plan, with real agents over mutual TLS: each is answered what it asked, and one may die."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from jellybean.serving import Client, RequestError
from jellybean_agent import DELIVER_METHOD, CertificateFolder, Identity, ReplyAddress, Role, protocol_metadata
from jellybean_agent.security.identity import SENDER_KEY
from jellybean_agent.transport.channels import CHANNEL_OPTIONS
from jellybean_agent.transport.gateway_peers import FORGET_S
from tests.support.balancer import Endpoint, balancer
from tests.support.gateways_run import GatewaysRun, gateways_run
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.tls_run import WORKFLOW
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

WORKERS = ("edge-1", "cloud-1", "cloud-2")
RATE_PER_S = 40.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaysRun]:
    """double at the edge, then triple on either of two workers; streams move to new connections all the time."""
    root = tmp_path_factory.mktemp("gateways")
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    routes = [(0.5, {"double": "edge-1", "triple": worker}) for worker in WORKERS[1:]]
    document = make_plan(root, operators, routes, sources={"x": "edge"})
    with gateways_run(root, document, WORKERS, renew_s=2.0) as found:
        yield found


def loads_on_both(run: GatewaysRun) -> list[SteadyLoad]:
    """A client of each gateway."""
    tls = run.certificate(Role.CLIENT, "bob")
    return [SteadyLoad(f"127.0.0.1:{port}", RATE_PER_S, factor=6.0, tls=tls) for port in run.ports]


def log(run: GatewaysRun, name: str) -> str:
    return (run.root / f"{name}.log").read_text(encoding="utf-8")


def test_each_gateway_gets_the_answers_to_its_own_requests(run: GatewaysRun) -> None:
    with run.client_of(0) as first, run.client_of(1) as second:
        before = [client.status().answered for client in (first, second)]
        for number in range(30):
            client = (first, second)[number % 3 == 0]
            value = np.array([[number, 1, 2, 3]], np.float32)
            assert client.infer({"x": value})["triple"].tolist() == (6 * value).tolist()
        after = [client.status() for client in (first, second)]
    assert [status.answered - count for status, count in zip(after, before, strict=True)] == [20, 10]
    assert not any(status.retried or status.failed for status in after)


def test_each_gateway_is_told_of_the_failures_of_its_own_requests(run: GatewaysRun) -> None:
    """A worker dies: both gateways send what was on it again."""
    loads = loads_on_both(run)
    with loads[0], loads[1]:
        time.sleep(0.5)
        os.kill(run.processes["cloud-2"].pid, signal.SIGKILL)
        run.processes["cloud-2"].wait()
        time.sleep(1.0)
        run.start("cloud-2")
        run.await_gateway(0)
        run.await_gateway(1)
    for load in loads:
        load.check()


@pytest.mark.slow
def test_a_gateway_that_is_killed_loses_nothing_and_the_other_never_stops(run: GatewaysRun) -> None:
    turns = itertools.count()

    def choose() -> Endpoint | None:
        """A gateway that takes connections, in turn."""
        for _ in run.ports:
            endpoint = "127.0.0.1", run.ports[next(turns) % len(run.ports)]
            with socket.socket() as probe:
                if probe.connect_ex(endpoint) == 0:
                    return endpoint
        return None

    tls = run.certificate(Role.CLIENT, "bob")
    with balancer(choose) as address, run.client_of(1) as second:
        before = second.status()
        clients = [SteadyLoad(address, RATE_PER_S / 4, factor=6.0, tls=tls, retry_s=20.0) for _ in range(4)]
        with SteadyLoad(f"127.0.0.1:{run.ports[1]}", RATE_PER_S, factor=6.0, tls=tls) as direct:
            for client in clients:
                client.__enter__()
            time.sleep(1.0)
            with run.client_of(0) as first:
                assert first.status().answered
                wait_until(lambda: first.status().requests_in_hand > 0)
            os.kill(run.processes["gateway-0"].pid, signal.SIGKILL)
            run.processes["gateway-0"].wait()
            time.sleep(2.0)
            for client in clients:
                client.__exit__(None, None, None)
        for client in clients:
            client.check()
        direct.check()
        assert max(direct.latencies_s) < 5.0
        after = second.status()
        assert after.failed == before.failed
        assert all(state == "ready" for state in after.workers.values())
    wait_until(lambda: f"the gateway at 127.0.0.1:{run.ports[0]} is gone" in log(run, "edge-1"), FORGET_S + 20.0)
    run.start_gateway(0)
    run.await_gateway(0)
    with run.client_of(0) as first:
        assert first.infer({"x": np.ones((1, 4), np.float32)})["triple"].tolist() == [[6, 6, 6, 6]]


def test_a_worker_cannot_say_where_answers_go(run: GatewaysRun) -> None:
    """Whoever has the certificate of a worker cannot have others connect to an address of its choice."""
    folder, cloud = run.certificate(Role.AGENT, "edge-1"), Identity(WORKFLOW, Role.AGENT, "cloud-1")
    found = CertificateFolder(folder).current()
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", cloud.tls_name)]
    credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.chain)
    with grpc.secure_channel(run.addresses["cloud-1"], credentials, options) as channel:
        reply = ReplyAddress("0" * 8, "127.0.0.1:1")
        metadata = ((SENDER_KEY, "edge-1"), *protocol_metadata(), *reply.metadata)
        deliver = channel.stream_stream(DELIVER_METHOD)
        with pytest.raises(grpc.RpcError) as refused:
            next(deliver(iter(()), metadata=metadata, timeout=20))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "agent edge-1 is no gateway: it cannot say where answers go" in refused.value.details()


@pytest.mark.slow
def test_several_gateways_take_as_many_requests_as_one_would(tmp_path: Path) -> None:
    """Two of them with a limit of eight: each takes four at once, and refuses more with the reason."""
    document = chain(tmp_path, slow_s=1.0)  # all have arrived before the first is answered
    options = ("--gateways=2", "--max-in-hand=8")

    def status_of(client: Client) -> str:
        try:
            client.infer({"x": np.ones((1, 4), np.float32)}, timeout_s=60.0)
        except RequestError as error:
            assert "4 requests are in flight, the most this gateway takes" in str(error)
            return error.status
        return "OK"

    with (
        gateways_run(tmp_path, document, ("edge-1", "cloud-1"), gateway_options=options) as run,
        run.client_of(0) as first,
        run.client_of(1) as second,
        ThreadPoolExecutor(24) as pool,
    ):
        for client in (first, second):
            client.status()  # it is connected
        found = Counter(pool.map(status_of, [first, second] * 12))
    assert found == {"OK": 8, "RESOURCE_EXHAUSTED": 16}


def test_a_gateway_that_leaves_is_finished_with(run: GatewaysRun) -> None:
    """Its requests are answered before it ends, and the other one's meanwhile."""
    tls = run.certificate(Role.CLIENT, "bob")
    with SteadyLoad(f"127.0.0.1:{run.ports[1]}", RATE_PER_S, factor=6.0, tls=tls) as direct:
        time.sleep(0.5)
        leaving = run.processes["gateway-0"]
        leaving.terminate()
        assert leaving.wait(20) == 0
        time.sleep(0.5)
    direct.check()
    run.start_gateway(0)
    run.await_gateway(0)


@pytest.mark.slow
def test_a_worker_that_drains_finishes_the_requests_of_both(run: GatewaysRun) -> None:
    loads = loads_on_both(run)
    with run.client_of(0) as first, run.client_of(1) as second:
        before = [client.status().retried for client in (first, second)]
        with loads[0], loads[1]:
            time.sleep(0.5)
            run.processes["cloud-1"].terminate()
            assert run.processes["cloud-1"].wait(30) == 0
            run.start("cloud-1")
            run.await_gateway(0)
            run.await_gateway(1)
        for load in loads:
            load.check()
        assert [client.status().retried for client in (first, second)] == before
