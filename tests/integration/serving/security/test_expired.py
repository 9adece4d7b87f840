"""What processes say and do once a certificate has expired, and that a renewed one is used without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean.serving import RequestError
from jellybean.serving.gateway.plans.worker_channels import WorkerChannels
from jellybean_agent import CertificateFolder, Role, Transport
from jellybean_protos.agent.v1 import agent_pb2, agent_pb2_grpc
from tests.integration.serving.security.test_mtls import ONES
from tests.support.tiny_models import chain
from tests.support.tls_run import WORKFLOW, TlsRun, tls_run
from tests.support.waiting import wait_until

SHORT_S = 4.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRun]:
    root = tmp_path_factory.mktemp("expired")
    with tls_run(root, chain(root), ("edge-1", "cloud-1"), renew_s=1.0) as found:
        yield found


def answers(run: TlsRun) -> bool:
    with run.client() as client:
        try:
            return bool(client.infer(ONES, timeout_s=5.0))
        except RequestError:
            return False


def test_a_request_fails_with_the_certificate_of_the_worker_that_has_expired(run: TlsRun) -> None:
    run.certificate(Role.AGENT, "cloud-1", life_s=-60.0)
    with run.client() as client:
        wait_until(lambda: client.status().workers["cloud-1"] == "gone")
        with pytest.raises(RequestError, match=r"worker cloud-1 is gone \(.*certificate has expired"):
            client.infer(ONES, timeout_s=1.0)
    run.certificate(Role.AGENT, "cloud-1")
    wait_until(lambda: answers(run))


def test_a_gateway_says_that_its_own_certificate_has_expired(run: TlsRun) -> None:
    pids = {name: process.pid for name, process in run.processes.items()}
    with run.client() as client:
        assert client.infer(ONES)
        run.certificate(Role.GATEWAY, life_s=-60.0)
        log = run.root / "gateway.log"
        wait_until(lambda: "cloud-1 is gone: the certificate of this process" in log.read_text(encoding="utf-8"))
    (line,) = [one for one in log.read_text(encoding="utf-8").splitlines() if "cloud-1 is gone: the cert" in one]
    assert " expired on 20" in line
    assert "jellybean certs DIR" in line
    run.certificate(Role.GATEWAY)
    wait_until(lambda: answers(run))
    assert {name: process.pid for name, process in run.processes.items()} == pids
    assert all(process.poll() is None for process in run.processes.values())


@pytest.mark.slow
def test_a_channel_to_a_worker_outlives_the_certificate_that_it_was_made_with(run: TlsRun) -> None:
    async def describe(channels: WorkerChannels) -> str:
        stub = agent_pb2_grpc.AgentStub(channels.of("edge-1"))  # type: ignore[no-untyped-call]
        status: agent_pb2.AgentStatus = await stub.Describe(agent_pb2.DescribeRequest(), timeout=5)
        return status.worker

    async def check(folder: Path) -> None:
        channels = WorkerChannels(Transport(WORKFLOW, CertificateFolder(folder)), run.addresses)
        assert await describe(channels) == "edge-1"
        assert channels.of("edge-1") is channels.of("edge-1")
        run.certificate(Role.ADMIN, "short")
        await asyncio.sleep(max(0.0, ends_unix_s - time.time()) + 3 * run.renew_s)  # connections end by then
        assert await describe(channels) == "edge-1"
        await channels.close()

    folder = run.certificate(Role.ADMIN, "short", life_s=SHORT_S)
    ends_unix_s = CertificateFolder(folder).current().expires_unix_s
    asyncio.run(check(folder))
