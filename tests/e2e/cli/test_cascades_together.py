"""Two workflows on one fleet, each with a cascade: planned, explained, simulated, served, and planned from a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client, running_state
from tests.support.command_line import jellybean
from tests.support.two_cascades import make_two_cascades

BETTER = ("--set", "shop.slo.accuracy=90", "--set", "yard.slo.accuracy=90")  # one box with cascades, two without
BUSY = ("--set", "shop.sources.x.rate=40/s")  # two boxes with cascades, one with `two`
NO_TARGET = ("--set", "shop.slo.latency_p99=null", "--set", "yard.slo.latency_p99=null")
SURE, UNSURE = np.array([[1, 2, 3, 4]], np.float32), np.array([[1, 2, 3, 3.9]], np.float32)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_two_cascades(tmp_path / "two")


def planned(folder: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jellybean("plan", str(folder), "--json", *NO_TARGET, *options).stdout)
    return found


def test_both_take_a_cascade_where_it_pays(project: Path) -> None:
    plain, better = planned(project), planned(project, *BETTER)
    assert "cascades" not in plain
    assert [(one["operator"], one["passed_on"]) for one in better["cascades"]] == [
        ("shop/first", 0.25),
        ("yard/first", 0.25),
    ]
    assert better["certificate"]["termination"] == "optimal"
    assert better["cost_usd_per_h"]["total"] == pytest.approx(plain["cost_usd_per_h"]["total"], rel=0.01)
    assert {name: one["accuracy"] for name, one in better["workflows"].items()} == {"shop": 93.0, "yard": 93.0}
    text = " ".join(jellybean("plan", str(project), *NO_TARGET, *BETTER).stdout.split())
    assert "shop/first is a cascade: two first, in edge; then five for 25 %, in edge (y < 8)" in text
    assert "no cascade" in text


def test_one_may_take_a_cascade_beside_one_that_does_not(project: Path) -> None:
    (cascade,) = planned(project, "--set", "yard.slo.accuracy=90")["cascades"]
    assert cascade["operator"] == "yard/first"


def test_a_running_plan_adopts_cascades_and_drops_them(project: Path) -> None:
    planned(project)
    adopted = planned(project, "--from", str(project / "plan.json"), *BETTER)
    assert adopted["replan"]["verdict"] == "replace"
    assert [one["operator"] for one in adopted["cascades"]] == ["shop/first", "yard/first"]
    dropped = planned(project, "--from", str(project / "plan.json"), *BUSY, "--horizon", "1000 h")
    assert dropped["replan"]["verdict"] == "replace"
    assert "cascades" not in dropped


def test_explanations_compare_with_all_forms(project: Path) -> None:
    """A plan without a cascade is an alternative to one with it, and the other way round."""
    asked = ("--why-not", "shop/first=five", "--why-not", "shop/first=both")
    found = json.loads(jellybean("explain", str(project), "--json", *BETTER, *NO_TARGET, *asked).stdout)
    dearer, used = found["why_not"]
    assert (dearer["verdict"], used["verdict"]) == ("dearer", "used")
    assert "shop/first: both -> five" in dearer["change"]["differences"]
    higher = next(one for one in found["values"] if one["words"].startswith("accuracy of shop above"))
    assert higher["accuracy"] is None and higher["selection"]["shop/first"] == "five"
    plain = json.loads(jellybean("explain", str(project), "--json", *NO_TARGET, *asked[2:]).stdout)
    (cascade,) = plain["why_not"]
    assert cascade["change"]["selection"]["shop/first"] == "both"
    wrong = jellybean("explain", str(project), "--why-not", "shop/first=bot", status=2).stderr
    assert "shop/first has no variant 'bot'; did you mean 'both'" in " ".join(wrong.split())


@pytest.fixture
def serving(project: Path) -> Iterator[Path]:
    jellybean("plan", str(project), *BETTER)
    jellybean("up", str(project), "--detach", *BETTER)
    yield project
    jellybean("down", str(project))


@pytest.mark.slow
def test_each_is_served_by_its_own_cascade(serving: Path) -> None:
    socket = running_state(serving).gateway_address
    for name, last in (("shop", 3.0), ("yard", 2.0)):
        with Client(socket, workflow=name) as client:
            for row, factor in ((SURE, 2.0), (UNSURE, 5.0)):
                (answer,) = client.infer({"x": row}).values()
                np.testing.assert_allclose(answer, row * factor * last, rtol=1e-6)


@pytest.mark.slow
def test_both_are_simulated(project: Path) -> None:
    simulated = json.loads(jellybean("simulate", str(project), "--duration", "5", "--json", *BETTER).stdout)
    assert all(one["completed"] for one in simulated["workflows"].values())
