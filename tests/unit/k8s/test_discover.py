"""Worker pools from nodes: grouping, exclusions, prices, sites."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from jellybean.cli.kubernetes.discover import infrastructure_text
from jellybean.documents import FROM_DOCUMENT, InfrastructureDocument
from jellybean_k8s import DeployError, NodeFleet, discover_pools
from jellybean_k8s.manifests.quantities import parse_quantity


def node(
    name: str,
    tier: str | None = "edge",
    *,
    memory: str = "4Gi",
    taints: tuple[dict[str, str], ...] = (),
    cordoned: bool = False,
    more: dict[str, str] | None = None,
    **labels: str,
) -> dict[str, Any]:
    known = {"instance": "node.kubernetes.io/instance-type", "site": "jellybean.dev/site", "pool": "jellybean.dev/pool"}
    known |= {"price": "jellybean.dev/price-usd-per-h", "product": "nvidia.com/gpu.product"}
    known |= {"gpu_memory": "nvidia.com/gpu.memory"}
    own = {known[key]: value for key, value in labels.items()} | ({"jellybean.dev/tier": tier} if tier else {})
    spec = {"taints": list(taints), **({"unschedulable": True} if cordoned else {})}
    status = {"allocatable": {"cpu": "4", "memory": memory, **(more or {})}}
    return {"metadata": {"name": name, "labels": own}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("toleration", "taken"),
    [
        ({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "ml"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "db"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_nodes_with_taints_that_all_pods_tolerate_belong_to_the_fleet(toleration: dict[str, str], taken: bool) -> None:
    nodes = [node("a", taints=({"key": "dedicated", "value": "ml", "effect": "NoSchedule"},))]
    found = discover_pools(nodes, ["edge", "cloud"], {}, tolerations=[toleration])
    assert (len(found.pools) == 1, len(found.left_out) == 0) == (taken, taken)


def test_alike_nodes_make_a_pool() -> None:
    nodes = [
        node("b", instance="pi5"),
        node("a", instance="pi5", memory="3900Mi"),
        node("c", instance="pi5", memory="2Gi"),
        node("g", "cloud", instance="g4dn.xlarge", product="Tesla-T4", memory="15Gi", more={"nvidia.com/gpu": "1"}),
        node("h", "cloud", pool="t4", memory="16000000Ki", more={"amd.com/gpu": "2"}),
    ]
    fleet = discover_pools(nodes, ["edge", "cloud"], {"pi5": 0.04, "g": 0.526, "t4": 1.0})
    found = {pool.name: (pool.tier, pool.count, pool.gpu, pool.gpus, pool.price_usd_per_h) for pool in fleet.pools}
    assert found == {
        "pi5": ("edge", 2, None, 0, 0.04),
        "pi5-size2": ("edge", 1, None, 0, 0.04),
        "Tesla-T4-g4dn.xlarge": ("cloud", 1, "nvidia", 1, 0.526),
        "t4": ("cloud", 2, "amd", 2, 0.5),
    }
    assert fleet.pools[0].memory_bytes == 3900 * 2**20  # what the smallest of them has
    assert fleet.sites == {}


def test_a_node_with_four_gpus_is_four_workers() -> None:
    four, label = {"nvidia.com/gpu": "4"}, {"product": "Tesla-T4", "gpu_memory": "15360"}
    nodes = [node(name, "cloud", instance="g4dn.12xlarge", memory="180Gi", more=four, **label) for name in "ab"]
    (pool,) = discover_pools(nodes, ["cloud"], {"g4dn.12xlarge": 4.0}).pools
    assert (pool.name, pool.count, pool.nodes) == ("4x-Tesla-T4-g4dn.12xlarge", 8, ("a", "b"))
    assert (pool.device, pool.device_memory_bytes) == ("cuda", 15 * 2**30)
    assert (pool.memory_bytes, pool.cpu, pool.price_usd_per_h) == (45 * 2**30, 1.0, 1.0)
    mixed = [node(str(count), pool="p", price="4", more={"nvidia.com/gpu": str(count)}) for count in (1, 4)]
    pools = discover_pools(mixed, ["edge"], {}).pools
    assert [(pool.name, pool.count, pool.price_usd_per_h) for pool in pools] == [("p", 1, 4.0), ("p-size2", 4, 1.0)]
    assert {pool.device_memory_bytes for pool in pools} == {None}  # no label says it


def test_parts_of_gpus_by_mig_are_pools_of_their_own() -> None:
    """Two GPUs: one whole, one divided into three slices and two (four of seven are used)."""
    parts = {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-2g.20gb": "2", "x.example/a": "4"}
    nodes = [node("a", pool="h100", memory="160Gi", price="8", gpu_memory="81559", more=parts)]
    pools = discover_pools(nodes, ["edge"], {}).pools
    assert [(pool.name, pool.count, pool.mig) for pool in pools] == [
        ("h100", 1, None),
        ("h100-mig-2g.20gb", 2, "2g.20gb"),
        ("h100-mig-3g.40gb", 1, "3g.40gb"),
    ]
    assert {(pool.device, pool.device_memory_bytes, pool.memory_bytes, pool.cpu) for pool in pools} == {
        ("cuda", 81559 * 2**20, 40 * 2**30, 1.0)
    }
    fractions = {None: 1.0, "2g.20gb": 2 / 7, "3g.40gb": 3 / 7}
    costs = sum(pool.count * (pool.price_usd_per_h or 0.0) * fractions[pool.mig] for pool in pools)
    assert costs == pytest.approx(8.0)  # the workers of a node cost what it does
    text = infrastructure_text(NodeFleet(pools, {}, ()), ["edge"])
    document = InfrastructureDocument.model_validate(yaml.safe_load(text), context=FROM_DOCUMENT)
    assert {name: spec.share and spec.share.mig for name, spec in document.workers.items()} == {
        pool.name: pool.mig for pool in pools
    }
    assert sum(spec.count * spec.worker_price_usd_per_h for spec in document.workers.values()) == pytest.approx(8.0)


def test_gpus_of_an_unknown_vendor_make_no_workers() -> None:
    (pool,) = discover_pools([node("a", pool="p", more={"gpu.intel.com/i915": "2"})], ["edge"], {"p": 1.0}).pools
    assert (pool.count, pool.device, pool.gpu, pool.gpus, pool.price_usd_per_h) == (1, None, "intel", 2, 1.0)


def test_what_serves_nothing_is_left_out_with_the_reason() -> None:
    taint = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
    gpu = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    away = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    own = {"key": "jellybean.dev/tier", "value": "edge", "effect": "NoSchedule"}
    nodes = [
        node("control", None),
        node("cordoned", cordoned=True),
        node("database", taints=(taint,)),
        node("fine", taints=(gpu, away, own)),
    ]
    fleet = discover_pools(nodes, ["edge"], {"fine": 1.0})
    assert [pool.nodes for pool in fleet.pools] == [("fine",)]
    assert fleet.left_out == (
        "control: no label jellybean.dev/tier",
        "cordoned: it is cordoned",
        "database: taint dedicated=db:NoSchedule",
    )


def test_prices_of_nodes_go_first_and_the_dearest_counts() -> None:
    nodes = [node("a", pool="p", price="0.5"), node("b", pool="p", price="0"), node("c", pool="p")]
    assert discover_pools(nodes, ["edge"], {"p": 0.3}).pools[0].price_usd_per_h == 0.5
    assert discover_pools(nodes, ["edge"], {}).pools[0].price_usd_per_h is None
    assert discover_pools(nodes[1:2], ["edge"], {"p": 0.3}).pools[0].price_usd_per_h == 0.0
    with pytest.raises(DeployError, match="price-usd-per-h=cheap is no price"):
        discover_pools([node("a", price="cheap")], ["edge"], {})


def test_alike_sites_are_counted_once_and_others_refused() -> None:
    nodes = [node(f"{site}-{i}", site=site) for site in ("north", "south", "west") for i in (1, 2)]
    fleet = discover_pools([*nodes, node("c", "cloud")], ["edge", "cloud"], {"4-cpu": 0.1})
    assert fleet.sites == {"edge": 3}
    assert [(pool.tier, pool.count) for pool in fleet.pools] == [("edge", 2), ("cloud", 1)]
    with pytest.raises(DeployError, match="sites of tier edge are not alike: 4-cpu is in 3 of 3"):
        discover_pools(nodes[:-1], ["edge"], {})


def test_a_tier_that_nobody_named_is_refused() -> None:
    with pytest.raises(DeployError, match="node x is in tier hub; --tiers names edge, cloud"):
        discover_pools([node("x", "hub")], ["edge", "cloud"], {})


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3.0), ("250m", 0.25), ("2Gi", 2**31), ("1500k", 1.5e6), ("16000000Ki", 16000000 * 1024)]
)
def test_quantities_are_read_as_kubernetes_means_them(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)
