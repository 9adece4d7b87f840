"""The GPUs of a node, as its allocatable resources and labels tell, and the workers that they make. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jellybean_k8s.manifests.devices import VENDOR_DEVICES
from jellybean_k8s.manifests.quantities import parse_quantity
from jellybean_k8s.manifests.settings import GPU_RESOURCES, MIB
from jellybean_k8s.objects import KubeObjectView

_MEMORY_LABEL = "nvidia.com/gpu.memory"  # of gpu-feature-discovery: MiB of each GPU
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(?P<profile>(?P<slices>[1-7])g\.[0-9]+gb)")  # MIG strategy `mixed`
_MIG_SLICES = 7  # compute slices of a GPU


@dataclass(frozen=True, slots=True)
class NodeWorkers:
    """`count` equal workers of a node. `device`: as documents name it; None for the CPU.

    `mig`: MIG profile of the part of a GPU that each is; None for a whole GPU, or for the node. `fraction`: of a GPU.
    """

    count: int
    device: str | None
    mig: str | None = None
    fraction: float = 1.0


def node_gpu(node: KubeObjectView) -> tuple[str | None, int]:
    """Vendor, or name of the resource, and number of a node's whole GPUs; (None, 0) without any."""
    vendors = {resource: vendor for vendor, resource in GPU_RESOURCES.items()}
    for resource, count in _allocatable(node):
        if count > 0 and (resource in vendors or resource.endswith("/gpu")):
            return vendors.get(resource, resource), count
    return None, 0


def node_workers(node: KubeObjectView) -> tuple[NodeWorkers, ...]:
    """The workers of a node: one of each GPU and of each part of one by MIG, else the node itself, on the CPU."""
    gpu, gpus = node_gpu(node)
    device = VENDOR_DEVICES.get(gpu) if gpu is not None else None
    found = [NodeWorkers(gpus, device)] if device is not None else []
    for resource, count in _allocatable(node):
        match = _MIG_RESOURCE.fullmatch(resource)
        if match and count > 0:
            part = int(match["slices"]) / _MIG_SLICES
            found.append(NodeWorkers(count, VENDOR_DEVICES["nvidia"], match["profile"], part))
    return tuple(found) or (NodeWorkers(1, None),)


def gpu_memory_bytes(node: KubeObjectView) -> float | None:
    """Memory of each of a node's GPUs, as gpu-feature-discovery labels it; None without the label."""
    text = str((node["metadata"].get("labels") or {}).get(_MEMORY_LABEL, ""))
    return float(text) * MIB if text.isdecimal() and int(text) > 0 else None


def _allocatable(node: KubeObjectView) -> list[tuple[str, int]]:
    resources = sorted((node["status"].get("allocatable") or {}).items())
    return [(name, int(parse_quantity(count))) for name, count in resources if "/" in name]
