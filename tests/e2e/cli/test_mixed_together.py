"""Two workflows on one fleet of which one mixes variants: planned, explained, simulated and served."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, running_state
from tests.e2e.cli.test_sites import DOCUMENTS
from tests.support.command_line import jellybean
from tests.support.two_scales import FACTORS, make_two_scales

REQUESTS = 50
ROW = np.array([[1, 2, 3, 4]], np.float32)
# Three boxes run one operator each: two for shop, whose better variant takes half of a box.
MEAN = ("--set", "shop.slo.accuracy={mean: 86}", "--set", "workers.box.count=3")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = make_two_scales(tmp_path / "two")
    fleet = folder / "infrastructure.yaml"
    fleet.write_text(
        fleet.read_text(encoding="utf-8").replace("count: 2, price: 0.1", "count: 2, sharing: exclusive, price: 0.1"),
        encoding="utf-8",
    )
    profiles = folder / "workflows" / "shop" / "profiles.yaml"
    profiles.write_text(profiles.read_text(encoding="utf-8").replace("box: 24 ms", "box: 100 ms"), encoding="utf-8")
    return folder


def test_one_mixes_variants_beside_one_that_does_not(project: Path) -> None:
    planned = json.loads(jellybean("plan", str(project), "--json", *MEAN).stdout)
    own = planned["workflows"]
    assert (own["shop"]["accuracy"], own["yard"]["accuracy"]) == pytest.approx((86.0, 80.0))
    assert own["shop"]["slo"]["mean_accuracy"] == 86.0
    shares = {(one["workflow"], one["selection"].get("shop/first", "")): one["share"] for one in planned["selections"]}
    assert shares == pytest.approx({("shop", "two"): 0.6, ("shop", "five"): 0.4, ("yard", ""): 1.0})
    text = jellybean("plan", str(project), *MEAN).stdout
    assert "mean 86.00 >= 86" in text
    assert "of the requests of shop 60 % get first two; 40 % get first five" in text
    assert "saves" in text and "planning one workflow after the other" in text


def test_a_mean_that_is_too_high_is_named_with_its_workflow(project: Path) -> None:
    high = ("--set", "shop.slo.accuracy={mean: 96}")
    text = " ".join(jellybean("plan", str(project), *high, status=3).stderr.split())
    assert "shop: no plan reaches a mean accuracy of 96; the highest is 80" in text


def test_a_soft_mean_says_what_it_counts(project: Path) -> None:
    soft = ("--set", "shop.slo.accuracy={mean: 95, penalty: 0.001 USD/h}", *MEAN[2:])
    told = json.loads(jellybean("plan", str(project), "--json", *soft).stdout)
    accuracy, proof = told["workflows"]["shop"]["accuracy"], told["certificate"]
    assert accuracy < 95
    assert proof["penalty"] == pytest.approx(0.001 * (95 - accuracy))
    assert proof["objective"] == pytest.approx(told["cost_usd_per_h"]["total"] + proof["penalty"])
    assert "soft target 95: counts" in jellybean("plan", str(project), *soft).stdout


@pytest.mark.slow
def test_each_workflow_gets_its_variants_when_served(project: Path) -> None:
    jellybean("plan", str(project), *MEAN)
    jellybean("up", str(project), "--detach")
    try:
        socket = running_state(project).gateway_address
        found = {}
        for name in FACTORS:
            with Client(socket, workflow=name) as client:
                answers = [client.infer({"x": ROW}) for _ in range(REQUESTS)]
            found[name] = Counter(float(next(iter(answer.values()))[0, 0]) for answer in answers)
        measured = json.loads(jellybean("bench", str(project), "--seconds", "3", "--json", *MEAN).stdout)
    finally:
        jellybean("down", str(project))
    assert found["shop"] == {6.0: 0.6 * REQUESTS, 15.0: 0.4 * REQUESTS}  # two x three, five x three
    assert found["yard"] == {4.0: REQUESTS}
    assert {name: one["failed"] for name, one in measured["workflows"].items()} == {"shop": 0, "yard": 0}


def make_stores(folder: Path, count: int) -> Path:
    """Sites that differ: each may answer some requests in its own boxes, better ones in the cloud."""
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    rows = [f"s{number},{1 + number % 4}/s,{number % 4}\n" for number in range(count)]
    (folder / "stores.csv").write_text("site,sources.camera.rate,workers.box.count\n" + "".join(rows), encoding="utf-8")
    fleet = folder / "infrastructure.yaml"
    fleet.write_text(fleet.read_text(encoding="utf-8").replace("store: 1000", "store: stores.csv"), encoding="utf-8")
    return folder


def test_sites_that_differ_mix_variants_each(tmp_path: Path) -> None:
    options = ("--set", "slo.accuracy={mean: 93}", "--set", "slo.latency_p99=null")
    told = json.loads(jellybean("plan", str(make_stores(tmp_path, 4)), "--json", *options).stdout)
    assert all(one["accuracy"] >= 93 - 1e-6 for one in told["workflows"].values())
    assert {one["workflow"] for one in told["selections"]} == {"s0", "s1", "s2", "s3"}
    single = json.loads(jellybean("plan", str(tmp_path), "--json", *options[2:], "--set", "slo.accuracy=93").stdout)
    assert told["cost_usd_per_h"]["total"] <= single["cost_usd_per_h"]["total"] * (1 + 1e-6)


def test_more_sites_than_one_program_takes_are_refused(tmp_path: Path) -> None:
    options = ("--set", "slo.accuracy={mean: 93}", "--set", "slo.latency_p99=null")
    text = jellybean("plan", str(make_stores(tmp_path, 16)), *options, status=1).stderr
    assert "a mean accuracy is for up to 15 workflows or sites on one fleet, and here are 16" in " ".join(text.split())
