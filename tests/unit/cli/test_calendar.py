"""`calendar`: plans by time for the rates of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.planning.plan_file import read_document
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops

RATES = [2, 2, 2, 10, 30, 30, 10, 2]  # of each of three hours


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A single shop, whose box and cloud workers are paid for by the hour, with a price for starting a model."""
    folder = write_shops(tmp_path)
    text = INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", "")
    text += "migration: {start: 0.01 USD}\n"
    (folder / "infrastructure.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").unlink()
    rows = "".join(f"{3 * 3600 * at},camera,{rate}\n" for at, rate in enumerate(RATES))
    (folder / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    return folder


def planned(shop: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    capsys.readouterr()
    assert run(["calendar", str(shop), str(shop / "day.csv"), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_plans_follow_the_rates(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(shop, capsys)
    periods = found["periods"]
    assert [one["rates_per_s"]["camera"] for one in periods] == [2, 10, 30, 10, 2]
    assert (periods[0]["start_s"], periods[-1]["end_s"]) == (0, 86_400)
    assert len({one["plan"] for one in periods}) > 1
    assert found["total_usd"] == pytest.approx(sum(one["cost_usd"] + one["change_usd"] for one in periods))
    assert found["bound_usd"] <= found["total_usd"] <= found["peak_usd"]


def test_each_period_is_planned_for_its_rates(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in planned(shop, capsys)["periods"]:
        options = one["command"].split(" --set ")[1:]
        assert run(["plan", str(shop), "--dry-run", "--json", *(x for o in options for x in ("--set", o))]) == 0
        assert json.loads(capsys.readouterr().out)["hash"] == one["plan"]


def test_dear_changes_are_not_made(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(shop, capsys, "--set", "migration.start=100 USD")
    assert len({one["plan"] for one in found["periods"]}) == 1
    assert found["change_usd"] == 0
    assert found["total_usd"] == pytest.approx(found["peak_usd"])


def test_fewer_periods_cost_no_less(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many, few = planned(shop, capsys), planned(shop, capsys, "--periods", "2", "--once")
    assert len(few["periods"]) == 2
    assert few["total_usd"] - few["change_usd"] >= many["total_usd"] - many["change_usd"]


def test_text_plans_and_picture(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["calendar", str(shop), str(shop / "day.csv")]
    assert run([*arguments, "--plans", str(shop / "plans"), "--plot", str(shop / "day.svg")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "one plan for the highest rates" in text
    assert "12:00" in text
    written = {read_document(path)[0]["hash"][:12] for path in (shop / "plans").iterdir()}
    assert written == {path.stem for path in (shop / "plans").iterdir()}
    assert len(written) > 1
    assert "<svg" in (shop / "day.svg").read_text(encoding="utf-8")


def test_no_plan_for_one_period(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (shop / "day.csv").open("a", encoding="utf-8") as file:
        file.write("90000,camera,5000\n")
    assert run(["calendar", str(shop), str(shop / "day.csv")]) == 3
    assert "no plan meets the targets at camera 5000/s" in " ".join(capsys.readouterr().err.split())


def test_a_wrong_trace(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n0,kamera,5\n", encoding="utf-8")
    assert run(["calendar", str(shop), str(shop / "day.csv")]) == 2
    assert "day.csv:2:3" in capsys.readouterr().err


def test_sites_that_differ_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_shops(tmp_path)
    (folder / "day.csv").write_text("time_s,source,rate_per_s\n0,berlin/camera,5\n", encoding="utf-8")
    assert run(["calendar", str(folder), str(folder / "day.csv")]) == 2
    assert "does not know sites that differ" in " ".join(capsys.readouterr().err.split())


def test_rests_of_started_units_count(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_second = planned(shop, capsys)
    assert by_second["unused_usd"] == 0
    whole = planned(shop, capsys, "--set", "workers.gpu.billing=3 h", "--set", "workers.box.billing=1 h")
    assert whole["unused_usd"] == pytest.approx(0)  # periods are of three hours
    long = planned(shop, capsys, "--set", "workers.gpu.billing=20 h")
    assert long["total_usd"] == pytest.approx(
        sum(one["cost_usd"] + one["change_usd"] for one in long["periods"]) + long["unused_usd"]
    )
    assert by_second["total_usd"] < long["total_usd"] <= long["peak_usd"] + 1e-9
