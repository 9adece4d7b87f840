"""Worker pools from the nodes of a cluster: nodes that are alike in tier, site, kind and size make a pool. Pure.

What a node is not asked for here: how fast it is (profile on it), and what links cost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.cluster.preflight import amount
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.settings import GPU_RESOURCES, MIB
from jellybean_k8s.names import OWN, SITE_LABEL, TIER_LABEL

Object = Mapping[str, Any]
POOL_LABEL = f"{OWN}/pool"
PRICE_LABEL = f"{OWN}/price-usd-per-h"
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
_STEP = 0.1  # nodes whose memory differs by less are alike
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_NAME = 40
_REFUSED = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodePool:
    """Alike nodes of a tier, `count` in each of its sites. `gpu`: vendor, or a resource's name."""

    name: str
    tier: str
    count: int
    memory_bytes: float
    cpu: float
    gpu: str | None
    gpus: int
    price_usd_per_h: float | None
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a cluster has. `left_out`: nodes that serve nothing, and why."""

    pools: tuple[NodePool, ...]
    sites: Mapping[str, int]
    left_out: tuple[str, ...]


def discover(
    nodes: Sequence[Object],
    tiers: Sequence[str],
    prices: Mapping[str, float],
    *,
    tier_label: str = TIER_LABEL,
    site_label: str = SITE_LABEL,
) -> Fleet:
    """The pools of a cluster's nodes. `prices`: USD per hour by pool, instance type or node; a node's label goes first.

    DeployError where a tier is unknown, or its sites are not alike.
    """
    chosen: dict[tuple[str, str], list[Object]] = {}
    left_out = []
    for node in sorted(nodes, key=lambda item: str(item["metadata"]["name"])):
        own = node["metadata"].get("labels") or {}
        reason = _left_out(node, own, tier_label)
        if reason:
            left_out.append(f"{node['metadata']['name']}: {reason}")
            continue
        if own[tier_label] not in tiers:
            known = ", ".join(tiers)
            raise DeployError(f"node {node['metadata']['name']} is in tier {own[tier_label]}; --tiers names {known}")
        chosen.setdefault((own[tier_label], _kind(node)), []).append(node)
    sites = {tier: count for tier in tiers if (count := len(_sites(chosen, tier, site_label))) > 1}
    pools = [
        _pool(tier, kind, group, sites.get(tier, 1), site_label, prices)
        for (tier, kind), alike in sorted(chosen.items(), key=lambda item: (tiers.index(item[0][0]), item[0][1]))
        for group in _by_memory(alike)
    ]
    return Fleet(_named_apart(pools), sites, tuple(left_out))


def _left_out(node: Object, own: Mapping[str, str], tier_label: str) -> str:
    if tier_label not in own:
        return f"no label {tier_label}"
    if node["spec"].get("unschedulable"):
        return "it takes no pods (cordoned)"
    vendors = {*GPU_RESOURCES.values(), tier_label}
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in _REFUSED and taint["key"] not in vendors:
            transient = taint["key"].startswith("node.kubernetes.io/")
            if not transient:
                return f"taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def _kind(node: Object) -> str:
    """What nodes of one pool share: a label of our own, else GPU and instance type, else what they have."""
    own = node["metadata"].get("labels") or {}
    if POOL_LABEL in own:
        return str(own[POOL_LABEL])
    gpu, count = _gpu(node)
    model = next((own[label] for label in _MODEL_LABELS if label in own), gpu)
    instance = next((own[label] for label in INSTANCE_LABELS if label in own), None)
    size = f"{_capacity(node, 'cpu'):g}-cpu"
    many = f"{count}x-" if count > 1 else ""
    parts = [f"{many}{model}" if model else "", instance or size]
    return "-".join(part for part in parts if part)


def _gpu(node: Object) -> tuple[str | None, int]:
    vendors = {resource: vendor for vendor, resource in GPU_RESOURCES.items()}
    for resource, count in sorted((node["status"].get("allocatable") or {}).items()):
        if "/" in resource and int(amount(count)) > 0 and (resource in vendors or resource.endswith("/gpu")):
            return vendors.get(resource, resource), int(amount(count))
    return None, 0


def _capacity(node: Object, resource: str) -> float:
    return amount((node["status"].get("allocatable") or {}).get(resource, "0"))


def _sites(chosen: Mapping[tuple[str, str], Sequence[Object]], tier: str, label: str) -> set[str]:
    nodes = [node for (of, _), alike in chosen.items() if of == tier for node in alike]
    return {found for node in nodes if (found := (node["metadata"].get("labels") or {}).get(label))}


def _by_memory(nodes: Sequence[Object]) -> list[list[Object]]:
    """Nodes by size: one that has a tenth less memory than the largest of a group begins another."""
    groups: list[list[Object]] = []
    for node in sorted(nodes, key=lambda item: -_capacity(item, "memory")):
        largest = _capacity(groups[-1][0], "memory") if groups else 0.0
        if groups and _capacity(node, "memory") >= (1 - _STEP) * largest:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _pool(
    tier: str, kind: str, nodes: Sequence[Object], sites: int, site_label: str, prices: Mapping[str, float]
) -> NodePool:
    gpu, gpus = _gpu(nodes[0])
    name = _NOT_A_NAME.sub("-", kind).strip("-.")[:_MOST_NAME] or "pool"
    count = len(nodes)
    if sites > 1:
        each = Counter((node["metadata"].get("labels") or {}).get(site_label, "") for node in nodes)
        if len(each) != sites or len(set(each.values())) > 1:
            told = ", ".join(f"{site or 'none'}: {number}" for site, number in sorted(each.items())[:4])
            raise DeployError(
                f"sites of tier {tier} are not alike: {name} is in {len(each)} of {sites} ({told}); plan them "
                f"apart, or label nodes {POOL_LABEL}"
            )
        count = next(iter(each.values()))
    return NodePool(
        name=name,
        tier=tier,
        count=count,
        memory_bytes=min(_capacity(node, "memory") for node in nodes) // MIB * MIB,
        cpu=min(_capacity(node, "cpu") for node in nodes),
        gpu=gpu,
        gpus=gpus,
        price_usd_per_h=_price(name, nodes, prices),
        nodes=tuple(str(node["metadata"]["name"]) for node in nodes),
    )


def _price(pool: str, nodes: Sequence[Object], prices: Mapping[str, float]) -> float | None:
    """The dearest of the nodes' prices, so that no plan costs more than it says; None when one is not known."""
    found: list[float | None] = []
    for node in nodes:
        own = node["metadata"].get("labels") or {}
        keys = [node["metadata"]["name"], pool, *(own[label] for label in INSTANCE_LABELS if label in own)]
        stated = _label_price(node, own)
        found.append(stated if stated is not None else next((prices[key] for key in keys if key in prices), None))
    known = [price for price in found if price is not None]
    return max(known) if len(known) == len(found) else None


def _label_price(node: Object, own: Mapping[str, str]) -> float | None:
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


def _named_apart(pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """Pools of one name get numbers, the largest first."""
    found: list[NodePool] = []
    seen: Counter[str] = Counter()
    for pool in pools:
        seen[pool.name] += 1
        number = seen[pool.name]
        name = pool.name if number == 1 else f"{pool.name}-size{number}"
        found.append(NodePool(name, *(getattr(pool, field) for field in NodePool.__slots__[1:])))
    return tuple(found)
