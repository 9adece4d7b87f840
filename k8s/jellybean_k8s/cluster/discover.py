"""Derives worker pools from a cluster's nodes: nodes equal in tier, site, type and size form a pool. Pure.

A node is a worker, or as many as it has GPUs and parts of GPUs by MIG, since the models of a worker run on one; they
share its cores and memory equally, and its price by their parts of a GPU.

Not derived: how fast nodes are (profile on them) and what links cost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_k8s.cluster.node_gpus import gpu_memory_bytes, node_gpu, node_workers
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.quantities import parse_quantity
from jellybean_k8s.manifests.settings import GPU_RESOURCES, MIB
from jellybean_k8s.names import OWN_PREFIX, SITE_LABEL, TIER_LABEL
from jellybean_k8s.objects import KubeObjectView

POOL_LABEL = f"{OWN_PREFIX}/pool"
PRICE_LABEL = f"{OWN_PREFIX}/price-usd-per-h"
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
_MEMORY_TOLERANCE = 0.1  # nodes whose memory differs by less, relatively, are in one pool
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_LENGTH = 40
_REFUSED = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodePool:
    """Workers of a tier on equal nodes, `count` in each of its sites. Memory and cores are those of a worker.

    `gpu`: a vendor, or the name of a resource. `gpus`: whole ones of a node. `device`: of a worker as documents name
    it; None for the CPU. `mig`: MIG profile of the part of a GPU that a worker is; None for a whole one. Price and
    `device_memory_bytes` (None if unknown) are those of the whole GPU.
    """

    name: str
    tier: str
    count: int
    memory_bytes: float
    cpu: float
    gpu: str | None
    gpus: int
    price_usd_per_h: float | None
    nodes: tuple[str, ...]
    device: str | None
    device_memory_bytes: float | None
    mig: str | None


@dataclass(frozen=True, slots=True)
class NodeFleet:
    """The worker pools of a cluster. `left_out`: unused nodes, with the reason."""

    pools: tuple[NodePool, ...]
    sites: Mapping[str, int]
    left_out: tuple[str, ...]


def discover_pools(
    nodes: Sequence[KubeObjectView],
    tiers: Sequence[str],
    prices: Mapping[str, float],
    *,
    tier_label: str = TIER_LABEL,
    site_label: str = SITE_LABEL,
    tolerations: Sequence[KubeObjectView] = (),
) -> NodeFleet:
    """The pools of a cluster's nodes. `prices`: USD per hour of a node by pool, instance type or node; labels override.

    `tolerations`: of all pods, beside those of tiers and GPUs.

    DeployError if a tier is unknown or its sites differ.
    """
    chosen: dict[tuple[str, str], list[KubeObjectView]] = {}
    left_out = []
    for node in sorted(nodes, key=lambda item: str(item["metadata"]["name"])):
        own = node["metadata"].get("labels") or {}
        reason = _exclusion_reason(node, own, tier_label, tolerations)
        if reason:
            left_out.append(f"{node['metadata']['name']}: {reason}")
            continue
        if own[tier_label] not in tiers:
            known = ", ".join(tiers)
            raise DeployError(f"node {node['metadata']['name']} is in tier {own[tier_label]}; --tiers names {known}")
        chosen.setdefault((own[tier_label], _node_type(node)), []).append(node)
    sites = {tier: count for tier in tiers if (count := len(_sites(chosen, tier, site_label))) > 1}
    pools = [
        pool
        for (tier, kind), alike in sorted(chosen.items(), key=lambda item: (tiers.index(item[0][0]), item[0][1]))
        for same_gpus in _by_gpus(alike)
        for group in _by_memory(same_gpus)
        for pool in _pools(tier, kind, group, sites.get(tier, 1), site_label, prices)
    ]
    return NodeFleet(_with_unique_names(pools), sites, tuple(left_out))


def _exclusion_reason(
    node: KubeObjectView, own: Mapping[str, str], tier_label: str, tolerations: Sequence[KubeObjectView]
) -> str:
    if tier_label not in own:
        return f"no label {tier_label}"
    if node["spec"].get("unschedulable"):
        return "it is cordoned"
    vendors = {*GPU_RESOURCES.values(), tier_label}
    for taint in node["spec"].get("taints") or ():
        if any(_tolerates(one, taint) for one in tolerations):
            continue
        if taint["effect"] in _REFUSED and taint["key"] not in vendors:
            transient = taint["key"].startswith("node.kubernetes.io/")
            if not transient:
                return f"taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def _tolerates(toleration: KubeObjectView, taint: KubeObjectView) -> bool:
    """Kubernetes' rule: the effect, key and value agree, where the toleration names them."""
    if toleration.get("effect") not in (None, taint["effect"]) or toleration.get("key") not in (None, taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _node_type(node: KubeObjectView) -> str:
    """Type by which nodes are grouped into pools: the pool label, else GPU with instance type or CPU count."""
    own = node["metadata"].get("labels") or {}
    if POOL_LABEL in own:
        return str(own[POOL_LABEL])
    gpu, count = node_gpu(node)
    model = next((own[label] for label in _MODEL_LABELS if label in own), gpu)
    instance = next((own[label] for label in INSTANCE_LABELS if label in own), None)
    size = f"{_capacity(node, 'cpu'):g}-cpu"
    many = f"{count}x-" if count > 1 else ""
    parts = [f"{many}{model}" if model else "", instance or size]
    return "-".join(part for part in parts if part)


def _capacity(node: KubeObjectView, resource: str) -> float:
    return parse_quantity((node["status"].get("allocatable") or {}).get(resource, "0"))


def _sites(chosen: Mapping[tuple[str, str], Sequence[KubeObjectView]], tier: str, label: str) -> set[str]:
    nodes = [node for (of, _), alike in chosen.items() if of == tier for node in alike]
    return {found for node in nodes if (found := (node["metadata"].get("labels") or {}).get(label))}


def _by_gpus(nodes: Sequence[KubeObjectView]) -> list[list[KubeObjectView]]:
    """Nodes grouped by vendor, number and memory of their GPUs: nodes with the same pool label may differ in them."""
    groups: dict[object, list[KubeObjectView]] = {}
    for node in nodes:
        groups.setdefault((node_gpu(node), node_workers(node), gpu_memory_bytes(node)), []).append(node)
    return list(groups.values())


def _by_memory(nodes: Sequence[KubeObjectView]) -> list[list[KubeObjectView]]:
    """Nodes grouped by memory: one with a tenth less than the largest of a group starts the next group."""
    groups: list[list[KubeObjectView]] = []
    for node in sorted(nodes, key=lambda item: -_capacity(item, "memory")):
        largest = _capacity(groups[-1][0], "memory") if groups else 0.0
        if groups and _capacity(node, "memory") >= (1 - _MEMORY_TOLERANCE) * largest:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _pools(
    tier: str, kind: str, nodes: Sequence[KubeObjectView], sites: int, site_label: str, prices: Mapping[str, float]
) -> Iterator[NodePool]:
    """A pool of each kind of workers on equal nodes. Together the workers of a node cost what the node does."""
    (gpu, gpus), workers = node_gpu(nodes[0]), node_workers(nodes[0])
    name = _NOT_A_NAME.sub("-", kind).strip("-.")[:_MAX_NAME_LENGTH] or "pool"
    count = len(nodes) if sites == 1 else _nodes_per_site(name, tier, nodes, sites, site_label)
    price, devices = _price(name, nodes, prices), sum(part.count * part.fraction for part in workers)
    each = sum(part.count for part in workers)
    for part in workers:
        yield NodePool(
            name=name if part.mig is None else f"{name}-mig-{part.mig}",
            tier=tier,
            count=count * part.count,
            memory_bytes=min(_capacity(node, "memory") for node in nodes) / each // MIB * MIB,
            cpu=min(_capacity(node, "cpu") for node in nodes) / each,
            gpu=gpu,
            gpus=gpus,
            price_usd_per_h=price / devices if price is not None else None,
            nodes=tuple(str(node["metadata"]["name"]) for node in nodes),
            device=part.device,
            device_memory_bytes=gpu_memory_bytes(nodes[0]) if part.device is not None else None,
            mig=part.mig,
        )


def _nodes_per_site(pool: str, tier: str, nodes: Sequence[KubeObjectView], sites: int, site_label: str) -> int:
    """Number of a pool's nodes in each site. DeployError if sites differ."""
    each = Counter((node["metadata"].get("labels") or {}).get(site_label, "") for node in nodes)
    if len(each) != sites or len(set(each.values())) > 1:
        told = ", ".join(f"{site or 'none'}: {number}" for site, number in sorted(each.items())[:4])
        raise DeployError(
            f"sites of tier {tier} are not alike: {pool} is in {len(each)} of {sites} ({told}); plan them "
            f"apart, or label nodes {POOL_LABEL}"
        )
    return next(iter(each.values()))


def _price(pool: str, nodes: Sequence[KubeObjectView], prices: Mapping[str, float]) -> float | None:
    """The highest price of a node, so that costs are never underestimated; None if one is unknown."""
    found: list[float | None] = []
    for node in nodes:
        own = node["metadata"].get("labels") or {}
        keys = [node["metadata"]["name"], pool, *(own[label] for label in INSTANCE_LABELS if label in own)]
        stated = _label_price(node, own)
        found.append(stated if stated is not None else next((prices[key] for key in keys if key in prices), None))
    known = [price for price in found if price is not None]
    return max(known) if len(known) == len(found) else None


def _label_price(node: KubeObjectView, own: Mapping[str, str]) -> float | None:
    text = own.get(PRICE_LABEL)
    if text is None:
        return None
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise DeployError(f"node {node['metadata']['name']}: {PRICE_LABEL}={text} is no price; write 0.526")
    return price


def _with_unique_names(pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """Make pool names unique by appending `-size2`, `-size3`, ... to repeated names. `pools`: the largest first."""
    found: list[NodePool] = []
    seen: Counter[str] = Counter()
    for pool in pools:
        seen[pool.name] += 1
        number = seen[pool.name]
        name = pool.name if number == 1 else f"{pool.name}-size{number}"
        found.append(replace(pool, name=name))
    return tuple(found)
