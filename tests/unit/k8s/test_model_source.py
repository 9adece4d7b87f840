"""Where pods get their models: one source, its port in the network policies, and the mounted cache."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import DeployError, ModelCache, ModelSource, deployed_plan, render
from jellybean_k8s.objects import KubeObject
from jellybean_solver import Plan
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_plans import SETTINGS
from tests.pod_security import violations
from tests.unit.k8s.rendered_objects import find, pod


def test_models_come_from_one_place() -> None:
    with pytest.raises(DeployError, match="given: none"):
        ModelSource()
    with pytest.raises(DeployError, match="given: url and claim"):
        ModelSource(url="https://x", claim="y")


def test_a_cache_of_models_is_mounted_by_the_init_container_alone(plan: Plan) -> None:
    url = "https://models.example/x"
    for cache, volume, refused in (
        (ModelCache(claim="models-cache"), {"persistentVolumeClaim": {"claimName": "models-cache"}}, []),
        (
            ModelCache(host_path="/var/lib/jellybean/models", size_bytes=2.0**30),
            {"hostPath": {"path": "/var/lib/jellybean/models", "type": "DirectoryOrCreate"}},
            ["restricted volume types: cache ['hostPath']"],
        ),
    ):
        objects = render(deployed_plan(plan, dataclasses.replace(SETTINGS, models=ModelSource(url=url, cache=cache))))
        assert schema_complaints(objects) == []
        found = pod(objects, "cloud")
        assert violations(found) == refused
        assert {"name": "cache", **volume} in found["volumes"]
        (prepare,), (agent,) = found["initContainers"], found["containers"]
        assert "/var/cache/jellybean" in [mount["mountPath"] for mount in prepare["volumeMounts"]]
        assert "cache" not in [mount["name"] for mount in agent["volumeMounts"]]
        assert {"--cache=/var/cache/jellybean", f"--cache-bytes={round(cache.size_bytes)}"} <= set(prepare["args"])
        gateway = find(objects, "Deployment")["spec"]["template"]["spec"]
        assert "cache" not in [one["name"] for one in gateway["volumes"]]
    with pytest.raises(DeployError, match="only files of a url are fetched: remove cache"):
        ModelSource(claim="models", cache=ModelCache(claim="c"))
    for wrong in (
        {},
        {"claim": "a", "host_path": "/b"},
        {"host_path": "b"},
        {"host_path": "/"},
        {"host_path": "/a/.."},
    ):
        with pytest.raises(DeployError, match=r"models\.cache"):
            ModelCache(**wrong)


def egress_ports(objects: tuple[KubeObject, ...], part: str) -> list[int]:
    """TCP ports that pods may open connections to, besides those of DNS."""
    rules = find(objects, "NetworkPolicy", part)["spec"]["egress"]
    return [port["port"] for rule in rules for port in rule["ports"] if port["port"] != 53]


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("https://models.example/x", [443, 80]),
        ("http://models.example:80/x", [443, 80]),
        ("http://minio.shop:9000/models", [443, 80, 9000]),
        ("https://[fd00::1]:8443", [443, 80, 8443]),
    ],
)
def test_agents_may_reach_the_port_of_the_models(plan: Plan, url: str, ports: list[int]) -> None:
    """And those of the two schemes, to which a server of models may redirect."""
    objects = render(deployed_plan(plan, dataclasses.replace(SETTINGS, models=ModelSource(url=url))))
    assert egress_ports(objects, "agents") == [7001, *ports]
    assert egress_ports(objects, "gateway") == [7001]
    assert complaints(objects) == schema_complaints(objects) == []


@pytest.mark.parametrize("url", ["https://models.example:99999/x", "https://models.example:0", "http://:80/x"])
def test_a_url_of_models_has_a_host_and_a_port_that_exists(url: str) -> None:
    with pytest.raises(DeployError, match=r"models.url: .* has no (host|port from 1 to 65535)"):
        ModelSource(url=url)
