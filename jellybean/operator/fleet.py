"""The fleet of a resource: stated in its spec, or discovered from the cluster's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jellybean.errors import JellyBeanError
from jellybean.operator.resource import DiscoverSpec
from jellybean.quantities import PRICE_PER_H, SIZE, format_quantity
from jellybean_k8s import (
    INSTANCE_LABELS,
    POOL_LABEL,
    PRICE_LABEL,
    DeploymentSettings,
    NodeFleet,
    NodePool,
    PoolSettings,
    discover_pools,
)

Object = Mapping[str, Any]


@dataclass(frozen=True)
class ResourceFleet:
    """A fleet as the content of infrastructure.yaml, and pod settings for pools without settings in the spec."""

    infrastructure: Object
    pools: Mapping[str, PoolSettings]
    description: str  # one line for log and status


def stated(infrastructure: Object) -> ResourceFleet:
    """The fleet of spec.infrastructure."""
    return ResourceFleet(infrastructure, {}, f"{len(infrastructure.get('workers', {}))} pools, as stated")


def discovered(nodes: Sequence[Object], wanted: DiscoverSpec, written: Object, settings: Object) -> ResourceFleet:
    """Pools of the cluster's nodes. `written`: spec.discover unparsed; `settings`: spec.kubernetes.

    JellyBeanError when no node has a tier, or a pool has no price.
    """
    labels = {key: settings[key] for key in ("tier_label", "site_label") if key in settings}
    tolerations = settings.get("pods", {}).get("tolerations", ())
    fleet = discover_pools(nodes, wanted.tiers, wanted.prices, **labels, tolerations=tolerations)
    if not fleet.pools:
        label = labels.get("tier_label", "jellybean.dev/tier")
        raise JellyBeanError(f"no node has a tier: kubectl label node NODE {label}={wanted.tiers[0]}")
    if unpriced := [pool.name for pool in fleet.pools if pool.price_usd_per_h is None]:
        raise JellyBeanError(
            f"there is no price for {', '.join(unpriced)}: write it into spec.discover.prices, or label its nodes "
            f"{PRICE_LABEL}=0.526"
        )
    infrastructure = {
        "tiers": list(wanted.tiers),
        **({"sites": dict(fleet.sites)} if fleet.sites else {}),
        "workers": {pool.name: _worker(pool) for pool in fleet.pools},
        **{key: written[key] for key in ("links", "limits", "migration") if key in written},
    }
    by_name = {str(node["metadata"]["name"]): node for node in nodes}
    return ResourceFleet(
        infrastructure, {pool.name: _pod_settings(pool, by_name) for pool in fleet.pools}, _describe(fleet)
    )


def with_pools(settings: DeploymentSettings, found: ResourceFleet) -> DeploymentSettings:
    """The settings; pools without settings of their own get the discovered ones."""
    pools = dict(settings.pools)
    for name, known in found.pools.items():
        own = pools.get(name, known)
        pools[name] = replace(own, node_labels=own.node_labels or known.node_labels)
    return replace(settings, pools=pools)


def _worker(pool: NodePool) -> dict[str, Any]:
    return {
        "tier": pool.tier,
        "count": pool.count,
        "price": format_quantity(PRICE_PER_H, pool.price_usd_per_h or 0.0),
        "memory": format_quantity(SIZE, pool.memory_bytes),
        **({"device": {"provider": pool.device}} if pool.device is not None else {}),
        **({"device_memory": format_quantity(SIZE, memory)} if (memory := pool.device_memory_bytes) else {}),
        **({"share": {"mig": pool.mig}} if pool.mig is not None else {}),
    }


def _pod_settings(pool: NodePool, nodes: Mapping[str, Object]) -> PoolSettings:
    """Pod settings of a pool: a label that all its nodes share. Their GPUs follow from the device."""
    shared: dict[str, str] = {}
    for label in (POOL_LABEL, *INSTANCE_LABELS):
        values = {(nodes[name]["metadata"].get("labels") or {}).get(label) for name in pool.nodes}
        if len(values) == 1 and (value := values.pop()) is not None:
            shared = {label: str(value)}
            break
    return PoolSettings(node_labels=shared)


def _describe(fleet: NodeFleet) -> str:
    pools = ", ".join(f"{pool.count} {pool.name} ({pool.tier})" for pool in fleet.pools)
    out = f"; {len(fleet.left_out)} nodes left out, first {fleet.left_out[0]}" if fleet.left_out else ""
    return f"{pools}{out}"
