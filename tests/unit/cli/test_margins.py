"""`slo.margin`: targets that hold although times and rates are higher than stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_project
from jellybean.errors import DocumentError
from jellybean.planning.plan_file import read_document
from jellybean.planning.predicted_latency import predicted_p99
from jellybean_solver import LossKind, Margin, stressed
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops

MARGIN = "slo.margin={times: 20 %, rates: 1.5x}"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = write_shops(tmp_path)
    text = INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", "")
    (folder / "infrastructure.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").unlink()
    return folder


def options(*settings: str) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


def test_workers_are_left_room_for_both(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(shop), *options(MARGIN, "sources.camera.rate=20/s")]) == 0
    assert "all targets hold with times +20 % and rates +50 %" in " ".join(capsys.readouterr().out.split())
    _, plan = read_document(shop / "plan.json")
    assert plan.slo.margin == Margin(0.2, 0.5)
    assert plan.sources[0].rate_per_s == 20
    assert max(worker.load for worker in plan.workers) <= 0.8 / 1.8 + 1e-9
    assert max(worker.load for worker in stressed(plan).workers) <= 0.8 + 1e-9


@pytest.mark.slow
def test_the_latency_is_judged_with_the_margin(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("sources.camera.rate=20/s", "slo.latency_p99=300 ms", "limits.utilisation=auto")
    assert run(["plan", str(shop), *options(MARGIN, *asked)]) == 0
    _, plan = read_document(shop / "plan.json")
    assert predicted_p99(plan)[""].p99_s <= predicted_p99(stressed(plan))[""].p99_s <= 0.3
    capsys.readouterr()
    assert run(["plan", str(shop), *options("slo.margin={times: 50x}", *asked)]) == 3
    assert "at a utilisation of at most 0.95 with times +4900 %" in " ".join(capsys.readouterr().err.split())


def test_explain_tells_what_the_margin_costs(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (MARGIN, "sources.camera.rate=10/s")
    assert run(["plan", str(shop), *options(*asked)]) == 0
    capsys.readouterr()
    assert run(["plan", str(shop), "--dry-run", "--json", *options(asked[1])]) == 0
    without = json.loads(capsys.readouterr().out)["cost_usd_per_h"]["total"]
    _, plan = read_document(shop / "plan.json")
    assert run(["explain", str(shop), "--json", *options(*asked)]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    found = next(one for one in limits if one["kind"] == "margin")
    change = found["without"]["cost_usd_per_h"]
    assert change == pytest.approx(without)
    assert change < plan.cost.total_usd_per_h


def test_what_is_lost_may_be_said_there(shop: Path) -> None:
    problem = build_problem(load_project(shop, ["slo.margin={lose: 1 worker, rates: 50 %}"]))
    assert problem.slo.survives == (LossKind.WORKER,)
    assert problem.slo.margin == Margin(rates=0.5)
    with pytest.raises(DocumentError, match="what may be lost is stated twice"):
        load_project(shop, ["slo.margin={lose: 1 worker}", "slo.survive=1 worker"])


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("times=1.5", "may be a factor or a share; write 1.5x, or 150 %"),
        ("rates=0.5x", "is no margin"),
        ("rates=x", "is no factor"),
        ("times=1000x", "is no margin"),
        ("workers=2", "margin"),
    ],
)
def test_what_is_no_margin_is_refused(shop: Path, stated: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        load_project(shop, [f"slo.margin.{stated}"])
