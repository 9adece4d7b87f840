"""Pods, run as processes here, take renewed certificates from mounted Secrets, without a restart or loss."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from jellybean.serving import Client, RequestError
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE
from jellybean_k8s import DeploymentSettings, ModelSource, deployed_plan, render
from jellybean_solver import from_document
from tests.integration.k8s.pods_here import Cluster, Pod, cluster_here
from tests.integration.k8s.test_pods_here import serving_files
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until

ROW = {"x": np.array([[1, 2, 3, 4]], np.float32)}
TRIPLE = [[6, 12, 18, 24]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("renewed")
    plan = from_document(chain(root / "store"))
    with serving_files(root / "store") as url:
        settings = DeploymentSettings({"cpu": "agent"}, "gateway", ModelSource(url=url), drain_s=5)
        with cluster_here(root / "pods", plan.name, render(deployed_plan(plan, settings))) as found:
            for pod in found.pods:
                pod.start()
            wait_until(lambda: all(pod.probe("readinessProbe") for pod in found.pods))
            yield found


def gateway_of(cluster: Cluster) -> Pod:
    return next(pod for pod in cluster.pods if pod.name.endswith("-gateway"))


def shown(cluster: Cluster, pod: Pod) -> bytes:
    """The certificate that a pod shows in a new connection, valid or not."""
    port, mine = 8001 if pod is gateway_of(cluster) else 7001, cluster.client_certificate()
    context = ssl.create_default_context(cafile=str(mine / CA_FILE))
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(mine / CERTIFICATE_FILE, mine / PRIVATE_KEY_FILE)
    with socket.create_connection((pod.address, port), 10) as raw, context.wrap_socket(raw) as secured:
        return secured.getpeercert(binary_form=True) or b""


def test_renewed_secrets_are_used_while_requests_are_answered(cluster: Cluster) -> None:
    failures: list[str] = []
    answered: list[object] = []
    is_over = threading.Event()
    address, mine = f"{gateway_of(cluster).address}:8001", cluster.client_certificate()

    def load() -> None:
        while not is_over.wait(0.005):
            with Client(address, tls=mine) as client:  # a new connection each time
                try:
                    answered.append(client.infer(ROW)["triple"].tolist())
                except RequestError as error:
                    failures.append(str(error))

    pids = [pod.process.pid for pod in cluster.pods if pod.process is not None]
    before = [shown(cluster, pod) for pod in cluster.pods]
    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_until(lambda: len(answered) > 20)
        for pod in cluster.pods:
            cluster.certify(pod)
        after = [shown(cluster, pod) for pod in cluster.pods]
        count = len(answered)
        wait_until(lambda: len(answered) > count + 50)
    finally:
        is_over.set()
        thread.join()
    assert failures == []
    assert answered == [TRIPLE] * len(answered)
    assert not set(before) & set(after)
    assert [pod.process.pid for pod in cluster.pods if pod.process is not None and pod.process.poll() is None] == pids


@pytest.mark.slow
def test_pods_recover_from_an_outage_of_expired_certificates_by_new_secrets_alone(cluster: Cluster) -> None:
    gateway, pids = gateway_of(cluster), [pod.process.pid for pod in cluster.pods if pod.process is not None]
    address = f"{gateway.address}:8001"
    cluster.certify(gateway, life_s=-60.0)
    expired = pytest.raises(RequestError, match=r"the certificate of the gateway at .* expired on 20")
    with Client(address, tls=cluster.client_certificate()) as client, expired:
        client.infer(ROW, timeout_s=10.0)
    cluster.certify(gateway)

    def answers() -> bool:
        try:
            with Client(address, tls=cluster.client_certificate()) as client:
                return bool(client.infer(ROW, timeout_s=10.0)["triple"].tolist() == TRIPLE)
        except RequestError:
            return False

    wait_until(answers)
    assert [pod.process.pid for pod in cluster.pods if pod.process is not None and pod.process.poll() is None] == pids


@pytest.mark.slow
def test_a_pod_that_starts_with_an_expired_certificate_says_so_and_starts_with_a_new_one(cluster: Cluster) -> None:
    agent = next(pod for pod in cluster.pods if pod is not gateway_of(cluster))
    assert agent.process is not None
    agent.process.terminate()
    agent.process.wait(30)
    cluster.certify(agent, life_s=-60.0)
    agent.start()
    assert agent.process.wait(60) == 2
    log = agent.containers[0].log.read_text(encoding="utf-8")
    assert "the certificate has expired; it is mounted from a Secret, which `jellybean certs DIR --renew`" in log
    cluster.certify(agent)
    agent.start()
    wait_until(lambda: all(pod.probe("readinessProbe") for pod in cluster.pods))
