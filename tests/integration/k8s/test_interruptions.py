"""Interrupted deployments and unavailable API servers."""

from __future__ import annotations

import dataclasses

import pytest
from kubernetes import client

from jellybean_k8s import Cluster, ClusterError, DeployError, UnreachableError, deploy, deployed_plan, read_inventory
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target


class _Interrupt(BaseException):
    pass


@pytest.mark.parametrize("at", [6, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 11))])
def test_an_interrupted_deployment_is_run_again_or_replaced_by_another(target: Target, at: int) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise _Interrupt

    with pytest.raises(_Interrupt):
        target.deploy(options=dataclasses.replace(QUICK, progress=stop))
    assert [revision.state for revision in read_inventory(target.cluster, "digits").revisions] == ["applying"]
    target.deploy(OTHER)
    assert all(deployed_plan(OTHER, SETTINGS).prefix in name for name in target.names("StatefulSet"))
    status = target.well()
    assert [revision.state for revision in status.revisions] == ["failed", "deployed"]
    target.deploy()
    assert target.serving() == deployed_plan(PLAN, SETTINGS).id


def test_an_api_server_that_comes_back_is_waited_for(target: Target) -> None:
    answers = iter((503, 500, 429))

    def away(_method: str, path: str) -> int | None:
        return next(answers, None) if "/statefulsets" in path else None

    target.wire.fault, target.wire.words = away, "etcdserver: leader changed"
    assert target.deploy().number == 1
    assert next(answers, None) is None  # it has met all of them
    target.wire.fault, target.wire.words = lambda _method, _path: 500, "a fault of the server"
    with pytest.raises(ClusterError, match="a fault of the server"):  # which nobody waits for
        target.deploy()


def test_an_api_server_that_vanishes_is_told_and_the_next_run_goes_on(target: Target) -> None:
    cluster = target.impatient(0.5)
    writes = 0

    def die(method: str, path: str) -> int | None:
        nonlocal writes
        writes += method == "PATCH" and "/pods/" not in path
        return 503 if writes > 6 else None

    target.wire.fault = die
    with pytest.raises(DeployError, match=r"a fault of the test|has not answered"):
        deploy(cluster, deployed_plan(PLAN, SETTINGS), target.objects(), QUICK)
    target.wire.fault = None
    target.cluster.merge("Lease", "digits-deploy", {"spec": {"renewTime": "2000-01-01T00:00:00.000000Z"}})
    assert target.deploy().number == 2
    assert target.well()


def test_a_server_that_is_not_there_is_named(target: Target) -> None:
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:9"
    cluster = Cluster(client.ApiClient(configuration), "shop", patience_s=0.2)
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9 has not answered for 0\.2 s.* run it again"):
        deploy(cluster, deployed_plan(PLAN, SETTINGS), target.objects(), QUICK)
