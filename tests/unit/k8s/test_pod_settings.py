"""Settings of pods beside the plan's: laid over all templates, with patches that may not break a deployment."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from jellybean_k8s import (
    DeployError,
    DeploymentSettings,
    PodSettings,
    PoolSettings,
    ServiceSettings,
    deployed_plan,
    render,
)
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.objects import KubeObject
from tests import report_plans
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS, with_models

PLAN = with_models(report_plans.digits())
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
SIDECAR = {
    "name": "proxy",
    "image": "registry.example/proxy:1",
    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "16Mi"}},
}
ALL = PodSettings(
    cpu_limit=2.0,
    priority="serving",
    labels={"team": "vision", "azure.workload.identity/use": "true"},
    annotations={"example.com/owner": "vision team", "prometheus.io/scrape": "false"},
    tolerations=(TOLERATION,),
    env={"HTTPS_PROXY": "http://proxy:3128", "OMP_NUM_THREADS": "2"},
    runtime_class="gvisor",
)
CLOUD = PodSettings(
    cpu_limit=4.0,
    priority="training",
    env={"OMP_NUM_THREADS": "4"},
    tolerations=(TOLERATION, {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}),
    patch={
        "spec": {
            "dnsPolicy": "Default",
            "securityContext": {"fsGroup": 1000, "runAsUser": None},
            "volumes": [{"name": "models", "emptyDir": {"medium": "Memory"}}],
            "initContainers": [{"name": "prepare", "imagePullPolicy": "Always"}],
            "containers": [{"name": "agent", "env": [{"name": "EXTRA", "value": "1"}]}, SIDECAR],
        }
    },
)


def with_settings(
    all_pods: PodSettings | None = None, cloud: PodSettings | None = None, gateway: PodSettings | None = None
) -> DeploymentSettings:
    none = PodSettings()
    pools = {"cloud": PoolSettings(pods=cloud or none)}
    return dataclasses.replace(SETTINGS, pods=all_pods or none, gateway_pods=gateway or none, pools=pools)


def templates(settings: DeploymentSettings) -> dict[str, Any]:
    """Component or pool -> pod template."""
    found = {}
    for item in render(deployed_plan(PLAN, settings)):
        if item["kind"] in WORKLOADS:
            labels = item["metadata"]["labels"]
            found[labels.get("jellybean.dev/pool", "gateway")] = item["spec"]["template"]
    return found


def test_settings_of_pods_are_the_golden_ones() -> None:
    settings = dataclasses.replace(
        with_settings(ALL, CLOUD, PodSettings(labels={"team": "edge"})),
        gateway_service=ServiceSettings("LoadBalancer", {"example.com/internal": "true"}),
    )
    deployed = deployed_plan(PLAN, settings)
    objects = render(deployed)
    assert_golden("digits-pod-settings.yaml", objects, deployed)
    assert schema_complaints(objects) == []
    (changed,) = complaints(_without_sidecar(objects))
    assert "pod security context" in changed  # which a patch may change


def _without_sidecar(objects: tuple[KubeObject, ...]) -> list[KubeObject]:
    found = copy.deepcopy(list(objects))
    for item in found:
        if item["kind"] == "StatefulSet":
            spec = item["spec"]["template"]["spec"]
            spec["containers"] = [one for one in spec["containers"] if one["name"] != "proxy"]
    return found


def test_what_a_pool_says_goes_before_what_is_said_of_all_pods() -> None:
    found = templates(with_settings(ALL, CLOUD))
    edge, cloud, gateway = (found[name]["spec"] for name in ("edge-box", "cloud", "gateway"))
    assert [one["priorityClassName"] for one in (edge, cloud, gateway)] == ["serving", "training", "serving"]
    assert [one["containers"][0]["resources"]["limits"]["cpu"] for one in (edge, cloud, gateway)] == ["2", "4", "2"]
    assert cloud["tolerations"].count(TOLERATION) == 1
    environment = {item["name"]: item.get("value") for item in cloud["containers"][0]["env"]}
    assert environment == {
        "WORKER_NUMBER": None,
        "HTTPS_PROXY": "http://proxy:3128",
        "OMP_NUM_THREADS": "4",
        "EXTRA": "1",
    }
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in cloud["initContainers"][0]["env"]  # it fetches


def test_a_cpu_limit_limits_every_container_as_a_quota_of_limits_wants() -> None:
    for template in templates(with_settings(PodSettings(cpu_limit=1.0))).values():
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
            assert container["resources"]["limits"]["cpu"] == "1"
    small = templates(
        dataclasses.replace(
            with_settings(),
            gateway_cpu=0.05,
            gateway_pods=PodSettings(cpu_limit=0.05),
        )
    )["gateway"]["spec"]["initContainers"][0]["resources"]
    assert (small["requests"]["cpu"], small["limits"]["cpu"]) == ("50m", "50m")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (with_settings(PodSettings(cpu_limit=0.5)), r"pods\.cpu_limit: 0\.5 cores are below the 1 that \w+ requests"),
        (with_settings(ALL, PodSettings(cpu_limit=0.7)), r"pools\.cloud\.cpu_limit: 0\.7 cores are below the 1"),
        (with_settings(gateway=PodSettings(cpu_limit=0.1)), r"gateway\.cpu_limit: 0\.1 cores are below the 1"),
    ],
)
def test_a_cpu_limit_below_the_request_is_refused(settings: DeploymentSettings, message: str) -> None:
    with pytest.raises(DeployError, match=message):
        deployed_plan(PLAN, settings)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("labels", {"jellybean.dev/plan": "x"}, "labels: jellybean.dev/plan is set by JellyBean"),
        ("labels", {"app.kubernetes.io/instance": "x"}, "labels: app.kubernetes.io/instance is set by JellyBean"),
        ("labels", {"pod-template-hash": "x"}, "labels: pod-template-hash"),
        ("annotations", {"jellybean.dev/config": "x"}, "annotations: jellybean.dev/config"),
        ("env", {"WORKER_NUMBER": "1"}, "env: WORKER_NUMBER is set by JellyBean"),
        ("env", {"AUTHORIZATION": "x"}, "env: AUTHORIZATION is set by JellyBean"),
    ],
)
def test_keys_that_are_ours_are_refused(field: str, value: dict[str, str], message: str) -> None:
    with pytest.raises(DeployError, match=message):
        PodSettings(**{field: value})  # type: ignore[arg-type]


NEEDED = "is needed: a patch may change it, not remove it"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"template": {}}, "pools.cloud.patch.template: is not part of a pod template: write metadata or spec"),
    ({"spec": []}, "pools.cloud.patch.spec: is not a map"),
    ({"metadata": {"name": "x"}}, "pools.cloud.patch.metadata.name: sets name their pods"),
    ({"metadata": {"labels": {"jellybean.dev/set": "x"}}}, "patch.metadata.labels[jellybean.dev/set]: the deployment"),
    ({"metadata": {"labels": {"app.kubernetes.io/component": None}}}, "labels[app.kubernetes.io/component]"),
    ({"metadata": {"labels": {"a": 1}}}, "patch.metadata.labels[a]: is not text: quote it: '1'"),
    ({"metadata": {"labels": None}}, "patch.metadata.labels: is not a map"),
    ({"metadata": {"annotations": {"jellybean.dev/config": "x"}}}, "annotations[jellybean.dev/config]"),
    ({"spec": {"hostname": "x"}}, "patch.spec.hostname: is a name by which agents find each other"),
    ({"spec": {"subdomain": "x"}}, "patch.spec.subdomain"),
    ({"spec": {"containers": None}}, f"patch.spec.containers: {NEEDED}"),
    ({"spec": {"containers": "x"}}, f"patch.spec.containers: {NEEDED}"),
    ({"spec": {"initContainers": None}}, f"patch.spec.initContainers: {NEEDED}"),
    ({"spec": {"volumes": None}}, f"patch.spec.volumes: {NEEDED}"),
    ({"spec": {"containers": [{"image": "x"}]}}, "patch.spec.containers[0]: has no name, by which such items are"),
    ({"spec": {"containers": [{"name": "agent", "volumeMounts": None}]}}, "containers[agent].volumeMounts: is needed"),
    ({"spec": {"containers": [{"name": "agent", "ports": None}]}}, "spec.containers[agent].ports: is needed"),
    (
        {"spec": {"containers": [{"name": "agent", "env": [{"name": "WORKER_NUMBER", "value": "7"}]}]}},
        "patch.spec.containers[agent].env[WORKER_NUMBER]: is set by JellyBean",
    ),
]


@pytest.mark.parametrize(("patch", "message"), REFUSED)
def test_a_patch_may_not_change_what_makes_a_deployment_work(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(DeployError) as caught:
        deployed_plan(PLAN, with_settings(cloud=PodSettings(patch=patch)))
    assert message in str(caught.value)
    assert str(caught.value).startswith("pools.cloud.patch.")


def test_a_patch_merges_maps_and_lists_of_named_items_and_replaces_others() -> None:
    patch = {
        "metadata": {"annotations": {"prometheus.io/port": None}, "labels": {"a": "b"}},
        "spec": {
            "tolerations": [],
            "affinity": None,
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "containers": [{"name": "agent", "securityContext": {"readOnlyRootFilesystem": False}}],
        },
    }
    before, after = templates(with_settings())["cloud"], templates(with_settings(PodSettings(patch=patch)))["cloud"]
    assert "prometheus.io/port" not in after["metadata"]["annotations"]
    assert after["metadata"]["labels"].items() > {"a": "b", "jellybean.dev/pool": "cloud"}.items()
    assert (after["spec"]["tolerations"], "affinity" in after["spec"]) == ([], False)
    assert after["spec"]["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["a"]}]
    old, new = before["spec"]["containers"][0], after["spec"]["containers"][0]
    assert new["securityContext"] == {**old["securityContext"], "readOnlyRootFilesystem": False}
    assert (new["ports"], new["volumeMounts"], new["resources"]) == (
        old["ports"],
        old["volumeMounts"],
        old["resources"],
    )


def test_a_change_of_settings_gives_all_sets_other_names_and_none_changes_nothing() -> None:
    plain = deployed_plan(PLAN, SETTINGS)
    assert deployed_plan(PLAN, with_settings()).id == plain.id
    assert len({deployed_plan(PLAN, one).id for one in (SETTINGS, with_settings(ALL), with_settings(cloud=ALL))}) == 3
    service = dataclasses.replace(SETTINGS, gateway_service=ServiceSettings("NodePort"))
    assert deployed_plan(PLAN, service).id == plain.id  # no pod is another
    assert render(deployed_plan(PLAN, service))[-1]["spec"]["type"] == "NodePort"
    assert "annotations" not in render(deployed_plan(PLAN, service))[-1]["metadata"]
