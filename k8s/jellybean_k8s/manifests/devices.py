"""What the planned device of a worker needs of its pod: an image that has the execution provider, and a GPU.

A pod that holds a GPU and computes on the CPU, or the other way round, is refused, as it would cost or fail unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.settings import GPU_RESOURCES, DeploymentSettings
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_solver import CPU

GPU_VENDORS = {  # execution provider that computes on a GPU -> vendor of the GPU, as in `GPU_RESOURCES`
    "cuda": "nvidia",
    "tensorrt": "nvidia",
    "rocm": "amd",
    "migraphx": "amd",
}
VENDOR_DEVICES = {"nvidia": "cuda", "amd": "rocm"}  # vendor -> device of workers on its GPUs
_EXAMPLE_DEVICES = {**VENDOR_DEVICES, "intel": "{provider: openvino, options: {device_type: GPU}}"}
_OTHER_DEVICE = "PROVIDER (the execution provider of that hardware)"


_SHARE_PREFIX = "share."  # of the option that says which part of a device a worker has: mig, mps or slots
_NVIDIA = "nvidia"
_SHARED = "nvidia.com/gpu.shared"  # of NVIDIA's device plugin, where it shares GPUs and renames them


def provider_of(device: str) -> str:
    """The execution provider of a planned device, without the device's number: `cuda` of `cuda:1`."""
    return device.partition(":")[0]


def agent_image(settings: DeploymentSettings, group: WorkerGroup) -> str:
    """The image of a group's agents: the one that has the execution provider of its device. KeyError without one."""
    return settings.agent_images[provider_of(group.device)]


def gpu_resource(settings: DeploymentSettings, group: WorkerGroup) -> str | None:
    """The resource of which a group's pods hold some, such as `nvidia.com/gpu`; None without a GPU.

    It is the one of the pool's settings, else that of the vendor whose GPUs the planned device, or a part of it, is of.
    """
    vendor = settings.of_pool(group.pool).gpu or GPU_VENDORS.get(provider_of(group.device))
    share = _share(group)
    if vendor == _NVIDIA and share is not None:
        kind, size = share
        return f"nvidia.com/mig-{size}" if kind == "mig" else _SHARED
    return GPU_RESOURCES.get(vendor, vendor) if vendor is not None else None


def gpu_taints(settings: DeploymentSettings, group: WorkerGroup) -> tuple[str, ...]:
    """Keys of the taints of nodes with a group's GPUs: the resource, and for a part of a GPU the whole one too."""
    resource, vendor = gpu_resource(settings, group), GPU_VENDORS.get(provider_of(group.device))
    whole = GPU_RESOURCES[vendor] if vendor is not None else None
    return tuple(dict.fromkeys(key for key in (resource, whole) if key is not None))


def _share(group: WorkerGroup) -> tuple[str, str] | None:
    """Kind and size of the part of a device that a group's workers have; None for a whole one."""
    shares = ((name.removeprefix(_SHARE_PREFIX), size) for name, size in group.device_options if _is_share(name))
    return next(shares, None)


def _is_share(option: str) -> bool:
    return option.startswith(_SHARE_PREFIX)


def require_devices(settings: DeploymentSettings, groups: Sequence[WorkerGroup]) -> None:
    """DeployError with every pool whose pods would not compute on the planned device."""
    pools = {group.pool: group for group in groups}
    problems = [*_missing_images(settings, pools.values()), *_wrong_gpus(settings, pools.values())]
    problems += [*_idle_gpus(settings, pools.values()), *_undivided_gpus(settings, pools.values())]
    if problems:
        raise DeployError("\n".join(problems))


def _missing_images(settings: DeploymentSettings, groups: Iterable[WorkerGroup]) -> Iterator[str]:
    by_provider: dict[str, list[str]] = {}
    for group in groups:
        by_provider.setdefault(provider_of(group.device), []).append(group.pool)
    for provider, pools in by_provider.items():
        if provider not in settings.agent_images:
            wanted = {**settings.agent_images, provider: "IMAGE"}
            images = ", ".join(f"{key}: {image}" for key, image in wanted.items())
            yield (
                f"no agent image for device {provider}, on which the plan has {', '.join(pools)}: write into "
                f"kubernetes.yaml images: {{agent: {{{images}}}}}, with the image of an agent whose "
                "onnxruntime has this provider (docs/kubernetes.md, Images)"
            )


def _wrong_gpus(settings: DeploymentSettings, groups: Iterable[WorkerGroup]) -> Iterator[str]:
    for group in groups:
        gpu, provider = settings.of_pool(group.pool).gpu, provider_of(group.device)
        if gpu is None:
            continue
        own = GPU_VENDORS.get(provider)
        if provider == CPU:
            yield (
                f"pools.{group.pool}.gpu: {gpu}: the plan has {group.pool} on the CPU, so its pods would hold a GPU "
                f"and compute on the CPU: write device: {_EXAMPLE_DEVICES.get(gpu, _OTHER_DEVICE)} into "
                f"workers.{group.pool} of infrastructure.yaml, profile it there and plan again, or remove gpu from "
                "kubernetes.yaml"
            )
        elif own is not None and gpu in GPU_RESOURCES and gpu != own:
            yield (
                f"pools.{group.pool}.gpu: {gpu}: the plan has {group.pool} on {group.device}, which runs on GPUs of "
                f"{own}: remove gpu from kubernetes.yaml"
            )


def _idle_gpus(settings: DeploymentSettings, groups: Iterable[WorkerGroup]) -> Iterator[str]:
    for group in groups:
        gpus = settings.of_pool(group.pool).gpus
        if gpus > 1 and provider_of(group.device) in GPU_VENDORS:
            yield (
                f"pools.{group.pool}.gpus: {gpus}: the models of a worker run on one GPU, so each of its pods "
                f"would hold {gpus - 1} idle: remove gpus from kubernetes.yaml; a machine with {gpus} GPUs is {gpus} "
                f"workers: write count: {gpus} for each machine into workers.{group.pool} of infrastructure.yaml, with "
                "the price and the memory of one, and plan again"
            )


def _undivided_gpus(settings: DeploymentSettings, groups: Iterable[WorkerGroup]) -> Iterator[str]:
    for group in groups:
        gpu, vendor = settings.of_pool(group.pool).gpu, GPU_VENDORS.get(provider_of(group.device))
        if _share(group) is None or vendor in (None, _NVIDIA) or (gpu is not None and gpu not in GPU_RESOURCES):
            continue
        yield (
            f"{group.pool}: a worker is a part of a GPU, but a pod would hold a whole {GPU_RESOURCES[vendor]}: "
            f"write the resource of the parts into kubernetes.yaml, pools.{group.pool}.gpu: {vendor}.com/RESOURCE, or "
            f"remove share from workers.{group.pool} of infrastructure.yaml"
        )
