"""Devices of pods: images, GPUs, parts of GPUs, and devices that are refused with the key to write."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from jellybean_agent import Share, plan_view
from jellybean_k8s import DeployError, ModelSource, PoolSettings, deployed_plan, render
from jellybean_solver import Plan
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS, on_device, wide
from tests.unit.k8s.rendered_objects import IMAGES, find, pod


def test_gpus_volumes_and_a_service_monitor_are_the_golden_ones(plan: Plan) -> None:
    pools = {"cloud": PoolSettings(cpu=4, memory_bytes=8 * 2**30, node_labels={"gpu.example/kind": "t4"})}
    settings = dataclasses.replace(IMAGES, pools=pools, models=ModelSource(image="registry.example/models:1"))
    deployed = deployed_plan(on_device(plan, "cloud", "cuda"), settings, service_monitor=True)
    objects = render(deployed)
    assert_golden("digits-gpu.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []


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
