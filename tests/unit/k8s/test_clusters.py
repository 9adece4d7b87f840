"""A plan in several clusters: what each gets, who reaches whom, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jellybean.documents import load_kubernetes, load_settings
from jellybean.errors import DocumentError
from jellybean_k8s import (
    ClusterPlace,
    DeployError,
    DeploymentSettings,
    PoolSettings,
    RelaySettings,
    ServiceSettings,
    certificate_secrets,
    deployed_plan,
    render,
)
from jellybean_k8s.manifests.routes_left import has_route_in
from jellybean_solver import Plan
from tests import k8s_plans, report_plans
from tests.k8s_certificates import equip
from tests.k8s_check import schema_complaints
from tests.k8s_clusters_check import cluster_complaints
from tests.k8s_plans import with_models
from tests.pod_security import violations

PLAN = with_models(report_plans.digits())
ADDRESS = "relay.example:7443"
CLUSTERS = {"near": ClusterPlace(("edge",)), "far": ClusterPlace(("cloud",))}
SETTINGS = dataclasses.replace(
    k8s_plans.SETTINGS, clusters=CLUSTERS, relay=RelaySettings(ADDRESS), gateway_tier="cloud", name="digits"
)


def objects_of(plan: Plan, settings: DeploymentSettings) -> dict[str, tuple[Any, ...]]:
    deployed = deployed_plan(plan, settings)
    return {name: render(deployed.in_cluster(name)) for name in deployed.clusters}


def kinds(objects: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in objects:
        found.setdefault(item["kind"], []).append(item["metadata"]["name"].partition("-")[2].partition("-")[2])
    return {kind: sorted(names) for kind, names in found.items()}


def test_each_cluster_gets_its_own_and_the_gateways_comes_first() -> None:
    found = objects_of(PLAN, SETTINGS)
    assert list(found) == ["far", "near"]
    assert kinds(found["far"])["Deployment"] == ["gateway", "relay"]
    assert found["far"][-1]["metadata"]["name"] == "digits"
    assert "Deployment" not in kinds(found["near"])
    assert not any(item["metadata"]["name"] == "digits" for item in found["near"] if item["kind"] == "Service")
    ids = {item["metadata"]["labels"].get("jellybean.dev/plan") for own in found.values() for item in own} - {None}
    assert len(ids) == 1


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_each_process_reaches_every_other_wherever_the_gateway_is(tier: str) -> None:
    found = objects_of(PLAN, dataclasses.replace(SETTINGS, gateway_tier=tier))
    assert cluster_complaints(found, ADDRESS) == []
    for own in found.values():
        assert schema_complaints(own) == []
        pods = [item["spec"]["template"]["spec"] for item in own if item["kind"] in ("StatefulSet", "Deployment")]
        assert [text for pod in pods for text in violations(pod)] == []


def test_a_relay_that_leads_elsewhere_is_noticed() -> None:
    """The check itself: an exchanged port, a missing tunnel and a missing worker are complaints."""
    found = objects_of(PLAN, SETTINGS)
    assert cluster_complaints(found, "other.example:7443") != []
    (files,) = (item for item in found["far"] if item["kind"] == "ConfigMap")
    files["data"] = {**files["data"], "workers.json": json.dumps({"20000": "edge-box-2", "20001": "edge-box-1"})}
    assert cluster_complaints(found, ADDRESS) != []


def test_a_single_cluster_needs_no_relay() -> None:
    places = {"one": ClusterPlace(("edge", "cloud")), "idle": ClusterPlace(sites=())}
    settings = dataclasses.replace(SETTINGS, clusters=places, relay=None)
    found = objects_of(PLAN, settings)
    assert found["idle"] == ()
    assert kinds(found["one"])["Deployment"] == ["gateway"]
    assert "tunnel" not in str(found["one"])


def test_sites_run_in_clusters_of_their_own() -> None:
    plan = with_models(
        report_plans.digits(),
    )
    plan = dataclasses.replace(plan, sites={"edge": 3})
    places = {
        "hub": ClusterPlace(("cloud",)), "first": ClusterPlace(sites=("edge-1",)), "others": ClusterPlace(("edge",))
    }  # fmt: skip
    settings = dataclasses.replace(SETTINGS, clusters=places)
    found = objects_of(plan, settings)
    assert cluster_complaints(found, ADDRESS) == []
    books = {name: json.loads(_files(own)["peers.json"]) for name, own in found.items()}
    assert {name.partition("/")[0] for name in books["first"] if "/" in name} == {"edge-1"}
    assert {name.partition("/")[0] for name in books["others"] if "/" in name} == {"edge-2", "edge-3"}


def test_a_plan_serves_something_without_a_cluster_if_a_route_avoids_it() -> None:
    deployed = deployed_plan(PLAN, SETTINGS)
    far, near = (deployed.in_cluster(name) for name in deployed.clusters)
    assert {worker.rpartition("-")[0] for route in PLAN.routes for worker in route.workers.values()} == {
        "edge-box", "cloud"
    }  # fmt: skip
    assert has_route_in([far, near])
    assert not has_route_in([far])
    assert not has_route_in([])


def test_a_nodes_port_is_the_addresses() -> None:
    relay = RelaySettings("10.0.0.7:30743", ServiceSettings("NodePort"))
    found = objects_of(PLAN, dataclasses.replace(SETTINGS, relay=relay))["far"]
    (service,) = (i for i in found if i["kind"] == "Service" and i["metadata"]["name"] == "digits-relay")
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["nodePort"], port["targetPort"]) == (30743, 30743, 7443)
    assert "jellybean.dev/plan" not in service["spec"]["selector"]  # tunnels of all plans dial it


def test_a_change_in_one_cluster_renames_what_is_in_all() -> None:
    other = dataclasses.replace(SETTINGS, relay=RelaySettings("elsewhere.example:7443"))
    assert deployed_plan(PLAN, SETTINGS).id != deployed_plan(PLAN, other).id


def test_each_cluster_gets_only_the_certificates_of_its_processes(tmp_path: Path) -> None:
    equip(tmp_path)
    deployed = deployed_plan(PLAN, SETTINGS)
    with pytest.raises(DeployError, match=r"relay/relay/tls\.crt: .*`jellybean certs`"):
        certificate_secrets(deployed.in_cluster("far"), tmp_path)
    secrets = certificate_secrets(deployed.in_cluster("near"), tmp_path)
    assert [item["metadata"]["name"] for item in secrets] == ["digits-tls-edge-box"]


REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"clusters": {"far": ClusterPlace(("cloud",))}}, "none has tier edge"),
    ({"clusters": {**CLUSTERS, "twice": ClusterPlace(("edge",))}}, "clusters.twice: tier edge is in near too"),
    ({"clusters": {**CLUSTERS, "x": ClusterPlace(("fog",))}}, "clusters.x: there is no tier fog"),
    ({"clusters": {**CLUSTERS, "x": ClusterPlace(sites=("edge-1",))}}, "there is no site edge-1"),
    ({"relay": None}, r"relay: agents in near have to reach the gateway in far: write relay: \{address"),
    ({"gateway_replicas": 2}, "gateway.replicas: agents in other clusters than far know only one"),
    ({"clusters": {}}, "relay: only agents of other clusters need it"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_clusters_that_cannot_serve_are_refused_in_words(changes: Mapping[str, Any], words: str) -> None:
    with pytest.raises(DeployError, match=words):
        deployed_plan(PLAN, dataclasses.replace(SETTINGS, **changes))


def test_an_autoscaler_counts_the_agent_beside_its_tunnel_alone() -> None:
    pools = {"edge-box": PoolSettings(autoscale=True)}
    plan = report_plans.digits()
    found = objects_of(with_models(plan), dataclasses.replace(SETTINGS, pools=pools))
    (scaler,) = (item for item in found["near"] if item["kind"] == "HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    assert (metric["type"], metric["containerResource"]["container"]) == ("ContainerResource", "agent")
    assert schema_complaints([scaler]) == []


def test_pools_of_several_clusters_shrink_as_in_one() -> None:
    """Each alone could lose workers; together no route would be left."""
    pools = {pool: PoolSettings(autoscale=True) for pool in ("edge-box", "cloud")}
    settings = dataclasses.replace(SETTINGS, pools=pools)
    plan = crossed_routes(PLAN)
    with pytest.raises(DeployError) as together:
        render(deployed_plan(plan, dataclasses.replace(settings, clusters={}, relay=None)))
    with pytest.raises(DeployError) as apart:
        objects_of(plan, settings)
    assert str(apart.value) == str(together.value)


def crossed_routes(plan: Plan) -> Plan:
    """The plan with four workers of each pool, that are joined crosswise."""
    names = {pool: [f"{pool}-{number}" for number in range(1, 5)] for pool in ("edge-box", "cloud")}
    by_pool = {worker.pool: worker for worker in plan.workers}
    workers = tuple(dataclasses.replace(by_pool[pool], name=name) for pool, own in names.items() for name in own)
    (route, *_) = plan.routes
    pools = {operator: worker.rpartition("-")[0] for operator, worker in route.workers.items()}
    routes = tuple(
        dataclasses.replace(
            route,
            weight=0.25,
            workers={
                operator: names[pool][number if pool == "cloud" else 3 - number] for operator, pool in pools.items()
            },
        )
        for number in range(4)
    )
    return dataclasses.replace(plan, workers=workers, routes=routes)


def test_objects_of_all_clusters_at_once_are_refused() -> None:
    with pytest.raises(DeployError, match="objects for each of far, near"):
        render(deployed_plan(PLAN, SETTINGS))


TEXT = """\
kind: Kubernetes
images: {agent: a:1, gateway: g:1}
models: {image: m:1}
gateway: {tier: cloud}
clusters:
  near: {tiers: [edge], sites: [edge-1]}
  far: {context: prod, namespace: shop, tiers: [cloud]}
relay: {address: "relay.example:30443", service: {type: NodePort}, cpu: 1, cpu_limit: 2}
"""
WRONG = [
    ("relay.example:30443", "relay.example", "relay.address: .*is no address: write HOST:PORT"),
    ("relay.example:30443", "relay.example:99999", "relay.address: .*is no address: write HOST:PORT"),
    ("relay.example:30443", "relay.example:443", "30000 to 32767"),
    ("cpu_limit: 2", "cpu_limit: 0.5", "cpu_limit 0.5 is below the request"),
    ("{tiers: [edge], sites: [edge-1]}", "{tiers: [edge], contxt: x}", "contxt"),
    ("gateway: {tier: cloud}", "gateway: {tier: fog}", "no cluster has tier fog"),
    ("gateway: {tier: cloud}", "description: x", "gateway: with several clusters, its tier says"),
    ("namespace: shop", "namespace: Shop_1", "clusters.far.namespace"),
]


def load(folder: Path, text: str) -> DeploymentSettings:
    (folder / "kubernetes.yaml").write_text(text, encoding="utf-8")
    return load_settings(folder)


def test_the_document_says_what_runs_where(tmp_path: Path) -> None:
    found = load(tmp_path, TEXT)
    assert found.clusters == {"far": ClusterPlace(("cloud",)), "near": ClusterPlace(("edge",), ("edge-1",))}
    assert found.relay is not None
    assert (found.relay.address, found.relay.service.type, found.relay.pods.cpu_limit) == (
        "relay.example:30443", "NodePort", 2.0
    )  # fmt: skip
    assert list(load_kubernetes(tmp_path).clusters_by_name) == ["far", "near"]


def test_a_relays_service_is_a_load_balancer_whatever_else_is_said_of_it(tmp_path: Path) -> None:
    found = load(tmp_path, TEXT.replace("30443", "443").replace("type: NodePort", "annotations: {a.example/nlb: x}"))
    assert found.relay is not None
    assert found.relay.service == ServiceSettings("LoadBalancer", {"a.example/nlb": "x"})


@pytest.mark.parametrize(("right", "wrong", "words"), WRONG)
def test_wrong_clusters_are_refused_with_their_path(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        load(tmp_path, TEXT.replace(right, wrong))


def _files(objects: Any) -> Mapping[str, str]:
    (found,) = (item["data"] for item in objects if item["kind"] == "ConfigMap")
    return dict(found)
