"""Rendering of fixed cases: golden files, settings, refusals, and that the checks can fail."""

from __future__ import annotations

import copy
import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean_agent import BUILTIN_STEPS_MODULE, Share, plan_view
from jellybean_k8s import (
    DeployError,
    DeploymentSettings,
    LedgerDatabase,
    ModelCache,
    ModelSource,
    PoolSettings,
    deployed_plan,
    dns_name,
    kustomize_base,
    render,
    to_yaml,
    yaml_documents,
)
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.manifests.settings import OWN_STEPS
from jellybean_k8s.names import label_value
from jellybean_k8s.objects import KubeObject
from jellybean_solver import Deliver, ModelRef, Plan, PythonRef, from_document
from tests import report_plans
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS, on_device, wide, with_models
from tests.pod_security import violations

IMAGES = dataclasses.replace(
    SETTINGS, agent_images={name: f"registry.example/agent-{name}:1" for name in ("cpu", "cuda", "rocm")}
)
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return with_models(report_plans.digits())


def find(objects: tuple[KubeObject, ...], kind: str, part: str = "") -> Any:
    return next(item for item in objects if item["kind"] == kind and part in item["metadata"]["name"])


def pod(objects: tuple[KubeObject, ...], part: str) -> Any:
    return find(objects, "StatefulSet", part)["spec"]["template"]["spec"]


def test_the_objects_of_a_plan_are_the_golden_ones(plan: Plan) -> None:
    deployed = deployed_plan(plan, SETTINGS)
    objects = render(deployed)
    assert_golden("digits.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []


def test_gpus_volumes_and_a_service_monitor_are_the_golden_ones(plan: Plan) -> None:
    pools = {"cloud": PoolSettings(cpu=4, memory_bytes=8 * 2**30, node_labels={"gpu.example/kind": "t4"})}
    settings = dataclasses.replace(IMAGES, pools=pools, models=ModelSource(image="registry.example/models:1"))
    deployed = deployed_plan(on_device(plan, "cloud", "cuda"), settings, service_monitor=True)
    objects = render(deployed)
    assert_golden("digits-gpu.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []


@pytest.mark.slow
@pytest.mark.parametrize("example", ["digits", "vqa"])
def test_plans_of_the_examples_are_sound(example: str) -> None:
    found = plan_project(load_project(EXAMPLES / example), compare=False).plan
    assert found is not None
    objects = render(deployed_plan(with_models(found), SETTINGS))
    assert complaints(objects) == schema_complaints(objects) == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_takes_the_base_and_lays_a_namespace_over_it(plan: Plan, tmp_path: Path) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    (tmp_path / "base").mkdir()
    for name, text in kustomize_base(objects).items():
        (tmp_path / "base" / name).write_text(text, encoding="utf-8")
    (tmp_path / "kustomization.yaml").write_text("namespace: shop\nresources: [base]\n", encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {item["metadata"].pop("namespace") for item in built} == {"shop"}
    key = lambda item: (item["kind"], item["metadata"]["name"])  # noqa: E731
    front = next(item for item in built if (item["kind"], item["metadata"]["name"]) == ("Service", "digits"))
    assert front["metadata"].pop("annotations") == {"argocd.argoproj.io/sync-wave": "1"}
    assert sorted(built, key=key) == sorted(yaml.safe_load_all(yaml_documents(objects)), key=key)


def test_what_is_served_here_for_real_is_not_emulated(plan: Plan) -> None:
    slow = dataclasses.replace(plan, workers=tuple(dataclasses.replace(w, speed=0.1) for w in plan.workers))
    data = yaml.safe_load(find(render(deployed_plan(slow, SETTINGS)), "ConfigMap")["data"]["plan.json"])
    assert {worker["speed"] for worker in data["workers"]} == {1.0}
    assert {(link["bandwidth_bytes_per_s"], link["latency_s"]) for link in data["links"]} == {(None, 0.0)}


def test_pools_may_be_autoscaled_where_the_routes_leave_room(plan: Plan) -> None:
    many = wide(plan, "cloud", 4)
    settings = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    objects = render(deployed_plan(many, settings))
    assert complaints(objects) == schema_complaints(objects) == []
    scaler = find(objects, "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 4)
    assert "replicas" not in find(objects, "StatefulSet", "cloud")["spec"]
    with pytest.raises(DeployError, match="cloud cannot shrink"):
        render(deployed_plan(plan, settings))
    with pytest.raises(DeployError, match="uses GPUs"):
        render(
            deployed_plan(
                on_device(many, "cloud", "rocm"), dataclasses.replace(settings, agent_images=IMAGES.agent_images)
            )
        )


def test_a_pool_whose_workers_feed_different_ones_has_no_room(plan: Plan) -> None:
    """Without cloud-2, its requests would go over edge-box-1, which is planned for its own only."""
    first, second = "edge-box-1", "edge-box-2"
    route = plan.routes[0]

    def via(edge: str, cloud: str) -> dict[str, str]:
        return {o: cloud if i else edge for i, o in enumerate(route.workers)}

    worker = plan.worker_by_name["cloud-1"]
    routes = (
        dataclasses.replace(route, weight=0.8, workers=via(first, "cloud-2")),
        dataclasses.replace(route, weight=0.2, workers=via(second, "cloud-1")),
    )
    others = tuple(w for w in plan.workers if w.pool != "cloud")
    cloud = tuple(dataclasses.replace(worker, name=f"cloud-{i}") for i in (1, 2))
    found = dataclasses.replace(plan, routes=routes, workers=(*others, *cloud))
    with pytest.raises(DeployError, match="would load others more than planned"):
        render(deployed_plan(found, dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})))


def test_edge_pods_wait_for_their_node_and_stand_alone_on_it(plan: Plan) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    edge, cloud = pod(objects, "edge-box"), pod(objects, "cloud")
    waits = {t["key"]: t["tolerationSeconds"] for t in edge["tolerations"] if "tolerationSeconds" in t}
    assert waits == {"node.kubernetes.io/unreachable": 604800, "node.kubernetes.io/not-ready": 604800}
    assert "podAntiAffinity" in edge["affinity"]
    assert "podAntiAffinity" not in cloud["affinity"]
    assert not any("tolerationSeconds" in t for t in cloud["tolerations"])


@pytest.mark.parametrize(
    ("device", "gpu", "resource"),
    [
        ("cpu", None, None),
        ("cuda", None, "nvidia.com/gpu"),
        ("tensorrt", None, "nvidia.com/gpu"),
        ("cuda", "nvidia.com/gpu.shared", "nvidia.com/gpu.shared"),
        ("rocm", None, "amd.com/gpu"),
        ("migraphx", "amd", "amd.com/gpu"),
        ("openvino", None, None),
        ("openvino", "intel", "gpu.intel.com/i915"),
        ("QNNExecutionProvider", "x.example/npu", "x.example/npu"),
    ],
)
def test_a_pod_has_the_image_and_the_gpu_of_its_device(
    plan: Plan, device: str, gpu: str | None, resource: str | None
) -> None:
    images = {"cpu": "agent:1", device: f"agent-{device}:1"}
    settings = dataclasses.replace(SETTINGS, agent_images=images, pools={"cloud": PoolSettings(gpu=gpu)})
    objects = render(deployed_plan(on_device(plan, "cloud", device), settings))
    found = pod(objects, "cloud")
    for container in (*found["initContainers"], *found["containers"]):
        assert container["image"] == f"agent-{device}:1"
    limits = found["containers"][0]["resources"]["limits"]
    assert limits == {"memory": limits["memory"], **({resource: "1"} if resource else {})}
    edge = pod(objects, "edge-box")["containers"][0]
    assert (edge["image"], list(edge["resources"]["limits"])) == (images["cpu"], ["memory"])


def test_four_gpus_of_a_machine_are_four_workers_with_one_each(plan: Plan) -> None:
    four = on_device(wide(plan, "cloud", 4), "cloud", "cuda")
    objects = render(deployed_plan(four, IMAGES))
    assert_golden("digits-four-gpus.yaml", objects, deployed_plan(four, IMAGES))
    assert complaints(objects) == schema_complaints(objects) == []
    assert find(objects, "StatefulSet", "cloud")["spec"]["replicas"] == 4
    settings = dataclasses.replace(IMAGES, pools={"cloud": PoolSettings(gpus=4)})
    with pytest.raises(DeployError, match=r"cloud.gpus: 4: .* hold 3 idle: remove gpus .* write count: 4 for each"):
        render(deployed_plan(four, settings))


@pytest.mark.parametrize(
    ("kind", "size", "resource"),
    [
        ("mig", "1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("mps", "25", "nvidia.com/gpu.shared"),
        ("slots", "4", "nvidia.com/gpu.shared"),
    ],
)
def test_a_part_of_a_gpu_is_a_resource_of_nvidias_device_plugin(
    plan: Plan, kind: str, size: str, resource: str
) -> None:
    parts = on_device(wide(plan, "cloud", 4), "cloud", "cuda", **{f"share.{kind}": size})
    objects = render(deployed_plan(parts, IMAGES))
    assert_golden(f"digits-{kind}.yaml", objects, deployed_plan(parts, IMAGES))
    assert complaints(objects) == schema_complaints(objects) == []
    found = pod(objects, "cloud")
    limits = found["containers"][0]["resources"]["limits"]
    assert limits == {"memory": limits["memory"], resource: "1"}
    assert {"nvidia.com/gpu", resource} <= {toleration["key"] for toleration in found["tolerations"]}
    view = plan_view(yaml.safe_load(find(objects, "ConfigMap")["data"]["plan.json"]))
    shares = {worker.name: worker.device.share for worker in view.workers.values()}
    assert shares["cloud-1"] == Share(kind, size)  # with it an agent limits its models' threads
    assert shares["edge-box-1"] is None
    own = dataclasses.replace(IMAGES, pools={"cloud": PoolSettings(gpu="nvidia.com/gpu")})  # shared, not renamed
    limits = pod(render(deployed_plan(parts, own)), "cloud")["containers"][0]["resources"]["limits"]
    assert limits == {"memory": limits["memory"], "nvidia.com/gpu": "1"}


def test_a_part_of_a_gpu_that_only_comes_whole_needs_a_resource(plan: Plan) -> None:
    parts = on_device(plan, "cloud", "rocm", **{"share.slots": "2"})
    with pytest.raises(
        DeployError, match=r"a pod would hold a whole amd.com/gpu: .* pools.cloud.gpu: amd.com/RESOURCE"
    ):
        render(deployed_plan(parts, IMAGES))
    own = dataclasses.replace(IMAGES, pools={"cloud": PoolSettings(gpu="amd.com/half")})
    assert (
        pod(render(deployed_plan(parts, own)), "cloud")["containers"][0]["resources"]["limits"]["amd.com/half"] == "1"
    )


def test_a_pod_has_its_gpu_as_number_0(plan: Plan) -> None:
    """The device plugin chooses the GPU, and the pod sees no other."""
    third = on_device(plan, "cloud", "cuda:3")
    data = yaml.safe_load(find(render(deployed_plan(third, IMAGES)), "ConfigMap")["data"]["plan.json"])
    assert {worker["name"]: worker.get("device", "cpu") for worker in data["workers"]} == {
        worker.name: "cuda" if worker.pool == "cloud" else "cpu" for worker in plan.workers
    }


def test_a_device_without_an_image_is_refused_with_the_key_to_write(plan: Plan) -> None:
    with pytest.raises(DeployError) as caught:
        render(deployed_plan(on_device(plan, "cloud", "cuda:1"), SETTINGS))
    assert str(caught.value).startswith(
        "no agent image for device cuda, on which the plan has cloud: write into kubernetes.yaml "
        "images: {agent: {cpu: registry.example/agent:1, cuda: IMAGE}}"
    )
    with pytest.raises(DeployError, match=r"no agent image for device cpu, on which the plan has edge-box: "):
        render(
            deployed_plan(
                on_device(plan, "cloud", "cuda"), dataclasses.replace(SETTINGS, agent_images={"cuda": "agent:1"})
            )
        )


def test_a_gpu_beside_a_device_that_does_not_use_it_is_refused_with_the_ways_out(plan: Plan) -> None:
    pools = {"cloud": PoolSettings(gpu="nvidia"), "edge-box": PoolSettings(gpu="vendor.example/npu")}
    with pytest.raises(DeployError) as caught:
        render(deployed_plan(plan, dataclasses.replace(SETTINGS, pools=pools)))
    edge, cloud = str(caught.value).splitlines()
    assert edge.startswith("pools.edge-box.gpu: vendor.example/npu: the plan has edge-box on the CPU")
    assert cloud == (
        "pools.cloud.gpu: nvidia: the plan has cloud on the CPU, so its pods would hold a GPU and compute on the CPU: "
        "write device: cuda into workers.cloud of infrastructure.yaml, profile it there and plan again, or remove gpu "
        "from kubernetes.yaml"
    )
    settings = dataclasses.replace(IMAGES, pools={"cloud": PoolSettings(gpu="amd")})
    with pytest.raises(DeployError, match="the plan has cloud on cuda, which runs on GPUs of nvidia: remove gpu"):
        render(deployed_plan(on_device(plan, "cloud", "cuda"), settings))


@pytest.mark.parametrize(
    "change",
    [
        {"agent_images": {"cpu": "other:2"}}, {"gateway_image": "other:2"}, {"version": "9.9.9"}, {"drain_s": 31.0},
        {"pools": {"cloud": PoolSettings(cpu=2.0)}}, {"gateway_memory_bytes": 2.0**30}, {"tier_label": "here/tier"},
    ],
)  # fmt: skip
def test_a_change_of_any_pod_gives_all_sets_other_names(plan: Plan, change: dict[str, Any]) -> None:
    """So that it starts beside the running ones; a set whose template changed would restart its pods in place."""
    before, after = (deployed_plan(plan, settings) for settings in (SETTINGS, dataclasses.replace(SETTINGS, **change)))
    assert before.id != after.id
    sets = [{o["metadata"]["name"] for o in render(one) if o["kind"] in WORKLOADS} for one in (before, after)]
    assert len(sets[0]) == len(sets[1]) > 2
    assert not sets[0] & sets[1]


def test_an_autoscaled_pool_is_another_deployment(plan: Plan) -> None:
    """Its set has no replicas of ours: without a name of its own the API server would give it one."""
    scaled = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    many = wide(plan, "cloud", 4)
    assert deployed_plan(many, SETTINGS).id != deployed_plan(many, scaled).id == deployed_plan(many, scaled).id


def test_another_way_to_find_metrics_is_another_deployment(plan: Plan) -> None:
    """Annotations of pods are in their templates."""
    assert deployed_plan(plan, SETTINGS).id != deployed_plan(plan, SETTINGS, service_monitor=True).id


def test_a_plan_too_large_for_a_config_map_is_refused_with_its_size(plan: Plan) -> None:
    many = dataclasses.replace(plan, sites={plan.tiers[0]: 20_000})
    with pytest.raises(DeployError, match=r"40,001 workers take [0-9,]+ bytes, a ConfigMap holds 1,000,000"):
        render(deployed_plan(many, SETTINGS))


def test_models_come_from_one_place() -> None:
    with pytest.raises(DeployError, match="given: none"):
        ModelSource()
    with pytest.raises(DeployError, match="given: url and claim"):
        ModelSource(url="https://x", claim="y")


def test_several_gateways_are_the_golden_ones(plan: Plan) -> None:
    deployed = deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_replicas=3))
    objects = render(deployed)
    assert_golden("digits-gateways.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []
    deployment = find(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (gateway,) = deployment["template"]["spec"]["containers"]
    assert {"--reply-address=$(REPLY_HOST):7001", "--gateways=3"} <= set(gateway["args"])
    assert gateway["env"] == [{"name": "REPLY_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    budget = find(objects, "PodDisruptionBudget", "-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    pod_labels = deployment["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= pod_labels.items()
    policy = find(objects, "NetworkPolicy", "-agents")["spec"]
    (to_own, *_) = (rule for rule in policy["egress"] if "to" in rule)  # agents reach the pods by their labels
    assert to_own["to"][0]["podSelector"]["matchLabels"].items() <= pod_labels.items()


def test_several_gateways_find_each_other_in_the_ledger(plan: Plan) -> None:
    database = LedgerDatabase("postgresql+psycopg://jellybean@db.example/ledger", "ledger")
    deployed = deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_ledger=database, gateway_replicas=2))
    objects = render(deployed)
    assert complaints(objects) == schema_complaints(objects) == []
    (gateway,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--ledger-deployment=$(POD_NAMESPACE)/{deployed.gateway}" in gateway["args"]
    paths = {item["name"]: item["valueFrom"].get("fieldRef", {}).get("fieldPath") for item in gateway["env"]}
    assert paths == {
        "REPLY_HOST": "status.podIP",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "PGPASSWORD": None,
    }


def test_a_single_gateway_is_deployed_as_before(plan: Plan) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    deployment = find(objects, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert not [text for text in deployment["template"]["spec"]["containers"][0]["args"] if "reply" in text]
    budgets = [item["metadata"]["name"] for item in objects if item["kind"] == "PodDisruptionBudget"]
    assert not [name for name in budgets if name.endswith("-gateway")]


def test_what_several_gateways_cannot_serve(plan: Plan) -> None:
    three = dataclasses.replace(SETTINGS, gateway_replicas=3, gateway_spool="kept")
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
    with pytest.raises(DeployError, match=r"keeps requests on disk .* that 3 gateways cannot share: write replicas: 1"):
        deployed_plan(dataclasses.replace(plan, sources=sources), three)
    first, *others = plan.operators
    stateful = (dataclasses.replace(first, state=(("state", "state_next"),)), *others)
    with pytest.raises(DeployError, match=rf"{first.name} keeps a state by stream.*one of 3: write replicas: 1"):
        deployed_plan(dataclasses.replace(plan, operators=stateful), three)
    for count in (0, 17):
        with pytest.raises(DeployError, match=rf"gateway\.replicas: {count} is not from 1 to 16"):
            deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_replicas=count))


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


def test_requests_that_are_kept_need_a_volume(plan: Plan) -> None:
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
    keeping = dataclasses.replace(plan, sources=sources)
    with pytest.raises(DeployError, match="name a PersistentVolumeClaim"):
        render(deployed_plan(keeping, SETTINGS))
    objects = render(deployed_plan(keeping, dataclasses.replace(SETTINGS, gateway_spool="kept")))
    assert complaints(objects) == schema_complaints(objects) == []
    gateway = find(objects, "Deployment")["spec"]["template"]["spec"]
    assert "--spool=/var/lib/jellybean/spool.db" in gateway["containers"][0]["args"]
    assert gateway["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "kept"


def test_metrics_of_gateway_and_agents_are_found_by_annotations_or_by_a_service_monitor(plan: Plan) -> None:
    def annotated(objects: Any) -> list[str]:
        templates = [(item["kind"], item["spec"]["template"]) for item in objects if "template" in item.get("spec", {})]
        return [kind for kind, one in templates if one["metadata"]["annotations"].get("prometheus.io/port") == "9090"]

    assert set(annotated(render(deployed_plan(plan, SETTINGS)))) == {"StatefulSet", "Deployment"}
    monitored = render(deployed_plan(plan, SETTINGS, service_monitor=True))
    assert annotated(monitored) == []
    chosen = find(monitored, "ServiceMonitor")["spec"]["selector"]
    (components,) = chosen["matchExpressions"]
    assert components["values"] == ["agent", "gateway"]
    served = [
        item["metadata"]["labels"]["app.kubernetes.io/component"]
        for item in monitored
        if item["kind"] == "Service" and "metrics" in [port["name"] for port in item["spec"]["ports"]]
    ]
    assert sorted(served) == ["agent", "gateway"]


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


def test_a_ledger_is_a_database_whose_password_is_a_secret(plan: Plan) -> None:
    database = LedgerDatabase("postgresql+psycopg://jellybean@db.example/ledger", "ledger")
    metrics, labelled = {"": "top1", "shop": "exact_match"}, {"shop": "last"}
    own = dataclasses.replace(SETTINGS, gateway_ledger=database, metrics=metrics, labelled=labelled)
    objects = render(deployed_plan(plan, own))
    assert complaints(objects) == schema_complaints(objects) == []
    (gateway,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--ledger={database.url}" in gateway["args"]
    assert "--ledger-run=$(POD_NAME)" in gateway["args"]
    assert {"--metric=top1", "--metric=shop=exact_match", "--labelled=shop=last"} <= set(gateway["args"])
    policies = [item for item in objects if item["kind"] == "NetworkPolicy"]
    reached = [port["port"] for item in policies for rule in item["spec"]["egress"] for port in rule["ports"]]
    assert reached.count(5432) == 1  # of the gateway alone
    assert LedgerDatabase("postgresql+psycopg://jellybean@db.example:5433/ledger").port == 5433
    assert {item["name"]: item["valueFrom"] for item in gateway["env"]} == {
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "PGPASSWORD": {"secretKeyRef": {"name": "ledger", "key": "password"}},
    }
    with pytest.raises(DeployError, match="a Secret"):
        LedgerDatabase("postgresql+psycopg://jellybean:pass@db.example/ledger")
    with pytest.raises(DeployError, match=r"not sqlite:///ledger\.db"):
        LedgerDatabase("sqlite:///ledger.db")


@pytest.mark.parametrize("models", [ModelSource(url="https://x"), ModelSource(claim="c"), ModelSource(image="m:1")])
def test_an_autoscaler_of_nodes_may_move_pods_whose_local_volumes_have_nothing_to_lose(
    plan: Plan, models: ModelSource
) -> None:
    """It removes no node with a local volume that this annotation does not name."""
    for item in render(deployed_plan(plan, dataclasses.replace(SETTINGS, models=models))):
        if item["kind"] in WORKLOADS:
            template = item["spec"]["template"]
            local = [volume["name"] for volume in template["spec"]["volumes"] if "emptyDir" in volume]
            named = template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]
            assert named.split(",") == local
            assert ("models" in local) is (item["kind"] == "StatefulSet" and models.url is not None)


def test_unknown_tiers_are_refused(plan: Plan) -> None:
    with pytest.raises(DeployError, match="gateway tier hub: the tiers of digits are edge, cloud"):
        render(deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_tier="hub")))


def test_names_are_kept_where_they_fit_and_never_become_one() -> None:
    assert dns_name("camera-box") == "camera-box"
    assert len({dns_name(text, 20) for text in ("a_b", "a-b", "A-B", "a.b", "a" * 30, "a" * 31, "9", "w9")}) == 8
    for text in ("_", "...", "Ä", "9lives", "x" * 80, "-a-"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", dns_name(text))
    assert label_value("T4.large_1") == "T4.large_1"
    assert label_value("_pool") != "_pool"


def test_yaml_reads_back_as_it_was() -> None:
    odd = ["no", "1", "1.5", "", " x", "x ", "a: b", "# c", "- d", "é", "\x7f\u2028", "a\nb\n", "a\n\nb\n", "\n", "~"]
    odd += ["null", "0x1f", "1e3", "2026-01-01", "=", "<<", "a\n  b\n", "%", "@x", "`", "'\"\\", "😀", "a\n", "k:"]
    value: dict[str, Any] = {text: [text, {text: text, "n": [1, 1.5, None, True]}] for text in odd if text}
    value |= {"empty": {}, "none": [], "deep": {"a": {"b": [{"c": [{"d": "x\ny\n"}]}]}}}
    assert yaml.safe_load(to_yaml(value)) == value


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(item: Any) -> None:
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = to

    return change


BROKEN = {
    "does not select its own pods": ("StatefulSet", _set("spec", "selector", "matchLabels", "x", to="y")),
    "is no quantity": (
        "StatefulSet",
        _set("spec", "template", "spec", "containers", 0, "resources", "requests", "cpu", to="1 core"),
    ),
    "is no DNS label": ("PodDisruptionBudget", _set("metadata", "name", to="Digits_1")),
    "no label instance": ("ServiceAccount", _set("metadata", "labels", to={})),
    "pod security context": (
        "Deployment",
        _set("spec", "template", "spec", "securityContext", "runAsNonRoot", to=False),
    ),
    "gets a token": ("Deployment", _set("spec", "template", "spec", "automountServiceAccountToken", to=True)),
    "which nobody opens": (
        "StatefulSet",
        _set("spec", "template", "spec", "containers", 0, "readinessProbe", "grpc", "port", to=1),
    ),
    "of grace cut short": ("StatefulSet", _set("spec", "template", "spec", "terminationGracePeriodSeconds", to=30)),
    "selects nothing": ("PodDisruptionBudget", _set("spec", "selector", "matchLabels", "x", to="y")),
    "no DNS": ("NetworkPolicy", _set("spec", "egress", to=[])),
    "refers to": ("StatefulSet", _set("spec", "template", "spec", "serviceAccountName", to="other")),
    "pods [": ("StatefulSet", _set("spec", "replicas", to=1)),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_the_checks_find_what_is_broken(plan: Plan, complaint: str) -> None:
    objects = copy.deepcopy(render(deployed_plan(plan, SETTINGS)))
    kind, change = BROKEN[complaint]
    change(find(objects, kind))
    assert any(complaint in text for text in complaints(objects))


def test_the_schema_finds_a_stray_and_a_missing_field(plan: Plan) -> None:
    objects = copy.deepcopy(render(deployed_plan(plan, SETTINGS)))
    find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    del find(objects, "StatefulSet")["spec"]["selector"]
    assert len(schema_complaints(objects, ("1.37.0",))) == 2


def test_settings_have_defaults_that_render(plan: Plan) -> None:
    objects = render(deployed_plan(plan, DeploymentSettings({"cpu": "a"}, "b", ModelSource(claim="models"))))
    assert pod(objects, "cloud")["volumes"][-1] == {
        "name": "models",
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
    }


def test_functions_run_in_pods_that_are_told_to(plan: Plan) -> None:
    assert OWN_STEPS == BUILTIN_STEPS_MODULE
    (first, *others) = plan.operators
    for function, known in (("team_steps:crop", False), (f"{BUILTIN_STEPS_MODULE}:softmax", True)):
        python = ModelRef("", "ef" * 32, 0.0, PythonRef(function, "{}", "cd" * 32))
        changed = dataclasses.replace(plan, operators=(dataclasses.replace(first, model=python), *others))
        if not known:
            with pytest.raises(DeployError, match=rf"allow_python: \[{function}\] into kubernetes.yaml"):
                render(deployed_plan(changed, SETTINGS))
        allowed = dataclasses.replace(SETTINGS, allow_python=() if known else (function,))
        containers = [
            container
            for found in render(deployed_plan(changed, allowed))
            if found["kind"] == "StatefulSet"
            for container in found["spec"]["template"]["spec"]["containers"]
        ]
        assert containers
        for container in containers:
            assert (f"--allow-python={function}" in container["args"]) is not known
        text = yaml_documents(render(deployed_plan(changed, allowed)))
        assert "ef" * 32 + ":" not in text  # nothing to bring: the agents' image has it
        assert from_document(deployed_plan(changed, allowed).document).operators[0].model == python
