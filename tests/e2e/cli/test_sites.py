"""A thousand alike stores through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import jellybean

WORKFLOW = """\
kind: Workflow
name: stores
sources:
  camera: {tier: store, rate: 2/s, message: 200 KiB}
operators:
  detect: {inputs: [camera], variants: [small, large], batch: 1}
  embed: {inputs: [detect], variants: [net]}
slo: {accuracy: 90, latency_p99: 12 s}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [store, cloud]
sites: {store: 1000}
workers:
  box: {tier: store, count: 3, price: 0.02 USD/h, memory: 1 GiB}
  gpu: {tier: cloud, count: 400, price: 0.60 USD/h}
links:
  - {from: store, to: cloud, price: 0.05 USD/GiB, bandwidth: 20 Mbit/s, latency: 20 ms}
"""
PROFILES = """\
kind: Profiles
hop: 1 ms
operators:
  detect:
    small: {message: 4 KiB, latency: {box: {mean: 300 ms, memory: 600 MiB}, gpu: 20 ms}}
    large: {message: 4 KiB, latency: {gpu: 60 ms}}
  embed:
    net: {latency: {box: {mean: 900 ms, memory: 600 MiB}, gpu: 50 ms}}
accuracy:
  end_to_end:
    - {selection: {detect: small}, accuracy: 91}
    - {selection: {detect: large}, accuracy: 95}
"""
DOCUMENTS = {"workflow.yaml": WORKFLOW, "infrastructure.yaml": INFRASTRUCTURE, "profiles.yaml": PROFILES}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_thousand_stores_are_planned_as_one(stores: Path) -> None:
    """A store's boxes carry detect and 8 in 9 of what embed takes; the rest of a thousand stores fills 14 GPUs."""
    found = json.loads(jellybean("plan", str(stores), "--json").stdout)

    assert found["status"] == "optimal" and found["sites"] == {"store": 1000}
    places = {(place["operator"], place["pool"]): place for place in found["placements"]}
    assert places["detect", "box"]["count"] == 1 and places["detect", "box"]["sites"] == 1000
    assert places["detect", "box"]["rate_per_s"] == pytest.approx(2000)
    assert places["detect", "box"]["load"] == pytest.approx(0.6)
    assert places["embed", "box"]["count"] == 2 and places["embed", "box"]["load"] == pytest.approx(0.8)
    in_cloud = 2000 - 2 * 0.8 / 0.9 * 1000  # requests per second
    assert places["embed", "gpu"]["count"] == 14 and places["embed", "gpu"]["sites"] == 1
    assert places["embed", "gpu"]["rate_per_s"] == pytest.approx(in_cloud)
    assert found["cost_usd_per_h"]["compute"] == pytest.approx(3 * 1000 * 0.02 + 14 * 0.6)
    assert found["cost_usd_per_h"]["network"] == pytest.approx(in_cloud * 4 * 3600 / 2**20 * 0.05)
    assert (stores / "plan.json").stat().st_size < 50_000
    text = jellybean("plan", str(stores), "--set", "slo.latency_p99=null").stdout  # without a second simulation
    assert "1,000 x store: box-1" in text
    assert "all sites have the same plan: workers and load are per site, the rate is the total" in " ".join(
        text.split()
    )


@pytest.mark.nightly
def test_a_thousand_stores_are_simulated(stores: Path) -> None:
    record = json.loads(jellybean("simulate", str(stores), "--json").stdout)

    assert record["throughput_per_s"] == pytest.approx(2000, rel=0.05)
    assert record["utilisation"]["box-1"] == pytest.approx(0.6, rel=0.05)
    assert record["highest_rate_per_s"] == pytest.approx(2500, rel=0.15)
    assert 1.2 < record["latency_p50_s"] < record["latency_p99_s"] < 8.0


@pytest.mark.slow
def test_simulated_and_explained_in_the_same_words(stores: Path) -> None:
    few = ("--set", "sites.store=20", "--set", "slo.latency_p99=null")
    assert "utilisation box-1 in each store" in jellybean("simulate", str(stores), *few).stdout
    told = jellybean("explain", str(stores), *few, "--json").stdout
    assert "the 3 workers of box in each store" in told
    assert "20 Mbit/s of each link store -> cloud" in told


@pytest.mark.nightly
def test_fewer_sites_by_an_option(stores: Path) -> None:
    few = json.loads(jellybean("plan", str(stores), "--json", "--set", "sites.store=2").stdout)
    one = json.loads(jellybean("plan", str(stores), "--json", "--set", "sites.store=1").stdout)
    none = json.loads(jellybean("plan", str(stores), "--json", "--set", "sites=null").stdout)

    assert few["sites"] == {"store": 2}
    assert one["hash"] == none["hash"] and one["sites"] == {}
    assert "3,400 workers in 2 pools" in jellybean("validate", str(stores)).stdout
    assert "sites" in json.loads(jellybean("schema", "infrastructure").stdout)["properties"]


@pytest.mark.nightly
def test_a_change_is_paid_for_in_every_store(stores: Path) -> None:
    jellybean("plan", str(stores), "--set", "slo.accuracy=94", "--set", "sources.camera.rate=1/s")
    plan = stores / "before.json"
    plan.write_text((stores / "plan.json").read_text(encoding="utf-8"), encoding="utf-8")
    set_ = ("--set", "migration.start=0.01 USD", "--set", "sources.camera.rate=1/s")
    found = json.loads(jellybean("plan", str(stores), "--from", str(plan), *set_, "--json").stdout)["replan"]

    assert found["verdict"] == "replace"
    loads = {(load["operator"], load["pool"]): load["replicas"] for load in found["migration"]["loads"]}
    assert loads["detect", "box"] == 1000
    assert found["migration"]["start_usd"] == pytest.approx(0.01 * sum(loads.values()))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("store: 1000", "shop: 1000", "infrastructure.yaml:3:15: sites.shop: there is no tier 'shop'"),
        ("store: 1000", "store: 0", "infrastructure.yaml:3:16: sites.store: must be at least 1"),
        (
            "store: 1000",
            "store: 1000, cloud: 3",
            "1,000 sites of store cannot be divided evenly among 3",
        ),
        ("store: 1000", "cloud: 3", "check the order of tiers"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    for name, text in DOCUMENTS.items():
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")

    assert told in jellybean("validate", str(tmp_path), status=2).stderr.replace("\n", " ")
