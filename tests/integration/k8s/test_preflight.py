"""What a cluster lacks is told before anything is applied."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import PoolSettings, render
from jellybean_k8s.cluster.deploy import deploy
from jellybean_k8s.cluster.preflight import PreflightError
from jellybean_k8s.manifests.identity import deployed_plan
from tests.k8s_plans import on_device
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target, only_mock, with_pools

OWN = "TwoGpuExecutionProvider"  # a provider of which it is not known that it takes one GPU
ON_GPU = on_device(PLAN, "cloud", OWN)
GPU_SETTINGS = dataclasses.replace(SETTINGS, agent_images={"cpu": "agent:1", OWN: "agent-gpu:1"})


@only_mock
def test_what_a_cluster_lacks_is_told_before_anything_is_applied(target: Target) -> None:
    assert target.server is not None
    costly = dataclasses.replace(ON_GPU, slo=dataclasses.replace(PLAN.slo, budget_usd_per_h=0.1))
    gpus = with_pools(GPU_SETTINGS, cloud=PoolSettings(gpu="nvidia", gpus=3))
    del target.server.api.store["nodes", "", "box-a"]
    with pytest.raises(PreflightError) as caught:
        deploy(target.cluster, deployed_plan(costly, gpus), render(deployed_plan(costly, gpus)), QUICK)
    text = str(caught.value)
    assert "the plan costs 0.7" in text
    assert "the budget is 0.10 USD/h" in text
    assert "there is no Secret digits-gateway-tls: make certificates" in text
    assert "2 workers want a node each, 1 nodes have jellybean.dev/tier=edge" in text
    assert "3 nvidia.com/gpu are requested on nodes with jellybean.dev/tier=cloud; 2 are allocatable there" in text
    assert target.writes() == []
    del target.server.api.store["nodes", "", "big"]
    with pytest.raises(PreflightError, match=r"kubectl label node NODE jellybean.dev/tier=cloud"):
        target.deploy()


@only_mock
def test_gpus_that_others_hold_are_counted(target: Target) -> None:
    assert target.server is not None
    gpus = with_pools(GPU_SETTINGS, cloud=PoolSettings(gpu="nvidia", gpus=2))
    target.deploy(ON_GPU, gpus)
    for name, pod in target.server.api.of("pods").items():
        if "-cloud-" in name:
            pod["spec"]["nodeName"] = "big"
    other = dataclasses.replace(gpus, agent_images={"cpu": "agent:2", OWN: "agent-gpu:2"})
    changed = dataclasses.replace(ON_GPU, hop_s=OTHER.hop_s)
    for plan, settings in ((ON_GPU, other), (changed, gpus)):  # another image, another plan
        with pytest.raises(PreflightError, match=r"2 in use. If the running plan uses them: --in-place"):
            target.deploy(plan, settings)
    target.deploy(changed, gpus, dataclasses.replace(QUICK, in_place=True))


def test_rights_that_are_missing_are_told_and_do_not_stop_it(target: Target) -> None:
    target.wire.fault = lambda _method, path: 403 if path == "/api/v1/nodes" else None
    said: list[str] = []
    assert target.deploy(options=dataclasses.replace(QUICK, say=said.append)).number == 1
    assert said == ["nodes were not checked: this user may not list them"]
