"""Random plans with random settings, deployed to an API server: sound, admitted, and left alone by a second run."""

from __future__ import annotations

import base64
import copy
import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from jellybean_k8s import (
    ClusterPlace,
    DeployedPlan,
    DeployError,
    DeployOptions,
    RelaySettings,
    ServiceSettings,
    deploy,
    deployed_plan,
    dry_run,
    read_status,
    render,
)
from jellybean_k8s.cluster.certificates.expiry import mounted_certificates
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.objects import KubeObject
from jellybean_solver import tier_at
from tests.api_server import RunningServer
from tests.k8s_check import complaints, new_shapes, schema_complaints
from tests.k8s_clusters_check import cluster_complaints
from tests.k8s_plans import random_plan_with_models
from tests.k8s_real import RealCluster
from tests.k8s_settings import random_settings
from tests.k8s_target import claim, mock_cluster, monitored, real_only, running_target, secret
from tests.pod_security import violations

PLANS, MORE_PLANS, MANY_PLANS = 12, 40, 200
RELAY = "relay.example:30443"
_NO_WAIT = DeployOptions(wait=False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate that stands for every worker's: deploying reads when it expires, and no agent runs."""
    folder = tmp_path_factory.mktemp("certificates")
    open_authority(folder / "ca").equip(folder / "one", Identity("test", Role.GATEWAY), hosts=(), life_s=86400.0)
    names = {"key": "tls.key", "crt": "tls.crt", "ca": "ca.crt"}
    return {key: base64.b64encode((folder / "one" / name).read_bytes()).decode() for key, name in names.items()}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as found:
        found.api.monitoring = True
        yield found


def random_deployment(rng: random.Random) -> DeployedPlan:
    """A plan and settings that can be rendered: an autoscaled pool without room is not autoscaled."""
    plan = random_plan_with_models(rng)
    settings = random_settings(rng, plan)
    deployed = deployed_plan(plan, settings, service_monitor=rng.random() < 0.5)
    try:
        render(deployed)
    except DeployError as error:
        assert str(error).startswith("autoscale: ")
        pools = {name: dataclasses.replace(pool, autoscale=False) for name, pool in settings.pools.items()}
        deployed = deployed_plan(plan, dataclasses.replace(settings, pools=pools))
    return deployed


def test_a_random_deployment_is_sound_and_a_second_run_changes_nothing(
    server: RunningServer, pem: dict[str, str]
) -> None:
    check_plans(server, pem, range(PLANS))


@pytest.mark.slow
def test_more_random_deployments_are_sound_and_a_second_run_changes_nothing(
    server: RunningServer, pem: dict[str, str]
) -> None:
    check_plans(server, pem, range(PLANS, MORE_PLANS))


@pytest.mark.nightly
def test_many_random_deployments_are_sound_and_a_second_run_changes_nothing(
    server: RunningServer, pem: dict[str, str]
) -> None:
    check_plans(server, pem, range(MORE_PLANS, MANY_PLANS))


@real_only
def test_a_real_api_server_takes_objects_of_random_plans(tmp_path: Path, real_cluster: RealCluster) -> None:
    """And their pods in a namespace that enforces the restricted profile; schemas alone do not tell either."""
    with running_target(tmp_path, real_cluster) as target, monitored(target):
        real_cluster.restrict(target.cluster.namespace)
        for seed in range(MORE_PLANS):
            objects = render(random_deployment(random.Random(seed)))
            for item in objects:
                made = target.cluster.apply(dict(item), dry_run=True)
                assert made["metadata"]["name"] == item["metadata"]["name"], seed
            for template in (item["spec"]["template"] for item in objects if item["kind"] in WORKLOADS):
                target.cluster.create(_admissible(template), dry_run=True)


def _admissible(template: Any) -> dict[str, Any]:
    """A pod of a template, without the names of what only this cluster's administrator could make."""
    elsewhere = ("serviceAccountName", "priorityClassName", "runtimeClassName")
    spec = {key: value for key, value in template["spec"].items() if key not in elsewhere}
    meta = {"generateName": "random-", "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def check_plans(server: RunningServer, pem: dict[str, str], seeds: range) -> None:
    seen: set[str] = set()
    count = dict.fromkeys(("sites", "workflows", "gpus", "autoscaled", "patched", "spooled", "relayed"), 0)
    for seed in seeds:
        deployed = random_deployment(random.Random(seed))
        objects = render(deployed)
        assert complaints(objects) == [], seed
        assert schema_complaints(new_shapes(objects, seen)) == [], seed
        pods = [item["spec"]["template"]["spec"] for item in objects if item["kind"] in WORKLOADS]
        assert [text for pod in pods for text in violations(pod)] == [], seed
        deploy_twice(server, deployed, objects, pem, seed)
        count["sites"] += bool(deployed.plan.sites)
        count["workflows"] += bool(deployed.plan.workflows)
        count["gpus"] += "/gpu" in str(pods)
        count["autoscaled"] += any(item["kind"] == "HorizontalPodAutoscaler" for item in objects)
        count["patched"] += "patched" in str([item for item in objects if item["kind"] in WORKLOADS])
        count["spooled"] += deployed.spools
        count["relayed"] += check_clusters(random_clusters(random.Random(seed), deployed), seen, seed)
    assert min(count.values()) > len(seeds) // 20, count  # the plans are as varied as they are meant to be


def random_clusters(rng: random.Random, deployed: DeployedPlan) -> DeployedPlan:
    """The plan divided among clusters: its tiers, and some sites."""
    plan, names = deployed.plan, [f"c{number}" for number in range(rng.randint(2, 3))]
    tiers = {tier: rng.choice(names) for tier in plan.tiers}
    sites = {
        tier_at(plan.sites, tier, site): rng.choice(names)
        for tier, count in plan.sites.items()
        for site in range(count)
        if count > 1 and rng.random() < 0.3
    }
    places = {
        name: ClusterPlace(*(tuple(key for key, own in of.items() if own == name) for of in (tiers, sites)))
        for name in names
    }
    relay = RelaySettings(
        RELAY, rng.choice((ServiceSettings("LoadBalancer", {"a/b": "c"}), ServiceSettings("NodePort")))
    )
    settings = dataclasses.replace(deployed.settings, clusters=places, relay=relay)
    return deployed_plan(plan, settings)


def check_clusters(deployed: DeployedPlan, seen: set[str], seed: int) -> bool:
    """Check the objects of each cluster, alone and together; returns whether they need a relay."""
    found = {name: render(deployed.in_cluster(name, service_monitor=seed % 2 == 0)) for name in deployed.clusters}
    assert cluster_complaints(found, RELAY) == [], seed
    everything = [item for objects in found.values() for item in objects]
    assert schema_complaints(new_shapes(everything, seen)) == [], seed
    pods = [item["spec"]["template"]["spec"] for item in everything if item["kind"] in WORKLOADS]
    assert [text for pod in pods for text in violations(pod)] == [], seed
    return deployed.in_cluster(deployed.clusters[0]).has_relay


def deploy_twice(
    server: RunningServer, deployed: DeployedPlan, objects: Sequence[KubeObject], pem: dict[str, str], seed: int
) -> None:
    cluster = mock_cluster(server)
    server.api.store.clear()
    server.api.owners.clear()
    server.api._history.clear()
    for item in (*_nodes(objects), *_named(objects)):
        space = "" if item["kind"] == "Node" else cluster.namespace
        plural = {"Node": "nodes", "PersistentVolumeClaim": "persistentvolumeclaims", "Secret": "secrets"}
        server.api.store[plural[item["kind"]], space, item["metadata"]["name"]] = item
    own = (*_certificates(deployed, objects, pem), *objects)
    first = deploy(cluster, deployed, own, _NO_WAIT)
    assert len(first.applied) == len(own), seed
    server.api.log.clear()
    assert dry_run(cluster, deployed, own) == [], seed
    assert deploy(cluster, deployed, own, _NO_WAIT).number is None, seed
    assert server.api.writes() == [], seed
    assert read_status(cluster, deployed.app).drift.words == (), seed


def _nodes(objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    """Nodes for all pods of each set, with the labels that they want and GPUs enough."""
    for item in objects:
        if item["kind"] not in WORKLOADS:
            continue
        required = item["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"]
        labels = {term["key"]: term["values"][0] for term in terms}
        limits = item["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        for number in range(item["spec"].get("replicas", 9)):
            name = f"{item['metadata']['name']}-{number}"
            gpus = {resource: "64" for resource in limits if "/" in resource}
            meta = {"name": name, "uid": name, "labels": labels}
            yield {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": gpus}}


def _named(objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    """The claims and Secrets that pods may name."""
    for item in (
        *(claim(name) for name in ("models", "kept")),
        *(
            secret(name, "authorization", "headers", "password")
            for name in ("token", "ledger", "pull", "other", "collector")
        ),
    ):
        yield {**item, "metadata": {**item["metadata"], "uid": item["metadata"]["name"], "resourceVersion": "1"}}


def _certificates(
    deployed: DeployedPlan, objects: Sequence[KubeObject], pem: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The Secrets that pods mount, with the labels of the deployment."""
    labels = next(item for item in objects if item["kind"] == "ServiceAccount")["metadata"]["labels"]
    for name, keys in mounted_certificates(objects).items():
        stems = {key.removesuffix(".crt") for key in keys} - {"ca"}
        data = {"ca.crt": pem["ca"]} | {f"{stem}.{end}": pem[end] for stem in sorted(stems) for end in ("crt", "key")}
        meta = {"name": name, "labels": copy.deepcopy(labels)}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}
