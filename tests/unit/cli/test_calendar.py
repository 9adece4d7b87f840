"""`calendar`: plans by time for the rates of a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_project
from jellybean.planning.plan_file import read_document
from jellybean_solver import evaluate, from_document, losses, plan_after
from tests.support.scales_project import make_scales_project
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops
from tests.unit.cli.test_workflows_by_site import written

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_fewer_periods_cost_no_less(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many, few = planned(shop, capsys), planned(shop, capsys, "--periods", "2", "--once")
    assert len(few["periods"]) == 2
    assert few["total_usd"] - few["change_usd"] >= many["total_usd"] - many["change_usd"]


@pytest.mark.slow
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
    assert "no plan meets the targets at camera 5,000/s" in " ".join(capsys.readouterr().err.split())


def test_a_wrong_trace(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n0,kamera,5\n", encoding="utf-8")
    assert run(["calendar", str(shop), str(shop / "day.csv")]) == 2
    assert "day.csv:2:3" in capsys.readouterr().err


def test_sites_that_differ_have_plans_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_shops(tmp_path)
    rows = "0,berlin/camera,1\n0,rome/camera,2\n43200,berlin/camera,20\n43200,rome/camera,2\n86400,berlin/camera,1\n"
    (folder / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    found = planned(folder, capsys)
    rates = [one["rates_per_s"]["berlin/camera"] for one in found["periods"]]
    assert rates == [1, 20, 1]
    assert found["bound_usd"] <= found["total_usd"] <= found["peak_usd"]
    check_each_plan(folder, found, capsys)
    assert run(["calendar", str(folder), str(folder / "day.csv")]) == 0
    told = capsys.readouterr()
    assert "to change to a plan at its time: jellybean plan" in " ".join(told.err.split())
    assert "berlin/camera" in told.out  # columns of a narrow terminal wrap


def check_each_plan(folder: Path, found: dict, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    """What `plan` says of each period's options: the plan of the period, at no lower value."""
    told = []
    for one in found["periods"]:
        options = [text.strip("'") for text in one["command"].split(" --set ")[1:]]
        assert run(["plan", str(folder), "--dry-run", "--json", *(x for o in options for x in ("--set", o))]) == 0
        told.append(json.loads(capsys.readouterr().out))
        assert told[-1]["hash"] == one["plan"]
    return told


def test_a_workflow_may_be_left_out_when_rates_are_high(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A till is worth less than a second gpu, which it needs once its rate is high."""
    folder = written(tmp_path / "stores", INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", ""))
    rows = "0,shop/camera,2\n0,till/camera,1\n43200,shop/camera,2\n43200,till/camera,60\n86400,till/camera,1\n"
    (folder / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    found = planned(folder, capsys, "--set", "till.admission.worth=0.7 USD/h")
    assert [one.get("left_out") for one in found["periods"]] == [None, ["till"], None]
    assert found["forgone_usd"] == pytest.approx(0.7 * 12)
    plans = check_each_plan(folder, found, capsys)
    hours = [(one["end_s"] - one["start_s"]) / 3600 for one in found["periods"]]
    objective = sum(h * one["certificate"]["objective"] for h, one in zip(hours, plans, strict=True))
    assert found["total_usd"] - found["change_usd"] + found["forgone_usd"] == pytest.approx(objective, rel=1e-3)
    assert found["bound_usd"] <= objective


MOST_ACCURATE = ("objective=mean_accuracy", "slo.budget=1.4 USD/h", "workers.gpu.count=1")


def test_the_most_accurate_plan_within_the_budget_is_chosen_for_each_period(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "0,camera,2\n43200,camera,60\n86400,camera,2\n"
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    options = [part for one in MOST_ACCURATE for part in ("--set", one)]
    found = planned(shop, capsys, *options)
    plans = check_each_plan(shop, found, capsys)
    accuracies = [one["accuracy"] for one in plans]
    assert all(one["certificate"]["of"] == "mean_accuracy" for one in plans)
    assert len(set(accuracies)) > 1
    hours = [(one["end_s"] - one["start_s"]) / 3600 for one in found["periods"]]
    assert found["mean_accuracy"] == pytest.approx(
        sum(h * a for h, a in zip(hours, accuracies, strict=True)) / sum(hours)
    )
    assert max(one["cost_usd_per_h"] for one in found["periods"]) <= 1.4 * (1 + 1e-6)
    for one, accuracy in zip(found["periods"], accuracies, strict=True):
        rate = f"sources.camera.rate={one['rates_per_s']['camera']:g}/s"
        assert run(["plan", str(shop), "--dry-run", "--json", *options, "--set", rate]) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(accuracy, abs=0.02)
    assert found["bound_usd"] == 0


def test_a_trace_states_the_rates(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calendar", str(shop), str(shop / "day.csv"), "--set", "objective=rate"]) == 2
    assert "a trace states them" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_least_latency_of_each_period(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(shop, capsys, "--set", "objective=latency", "--periods", "2")
    assert all("slo.latency_p99=" in one["command"] for one in found["periods"])


@pytest.mark.slow
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


# -- plans that mix variants or bear losses

EXCLUSIVE = ("workers.box.count=4", "workers.box.sharing=exclusive", "operators.first.batch=1")
DAY = [(0, 5), (3, 20), (6, 40), (9, 20), (12, 5), (15, 5)]  # hours, requests per second
START_USD = 0.001


@pytest.fixture
def scales(tmp_path: Path) -> Path:
    """A box computes `five` (95 %) for 8 requests per second, and `two` (80 %) for many; starting a model costs."""
    folder = make_scales_project(tmp_path / "scales")
    for name, before, after in (
        ("profiles.yaml", "box: 3 ms", "box: 100 ms"),
        ("infrastructure.yaml", "tiers:", f"migration: {{start: {START_USD} USD}}\ntiers:"),
    ):
        text = (folder / name).read_text(encoding="utf-8")
        assert before in text
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
    rows = "".join(f"{3600 * hour},x,{rate}\n" for hour, rate in DAY)
    (folder / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    return folder


def given(*options: str) -> list[str]:
    return [part for option in options for part in ("--set", option)]


def test_mixtures_follow_the_rates_and_keep_their_mean(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(scales, capsys, *given(*EXCLUSIVE, "slo.accuracy={mean: 86}"))
    # 5/s: one box of `five`; 20/s: 8/s on one, the rest on another; 40/s: 16/s on two, the rest on another. 0.2 server.
    periods = found["periods"]
    assert [one["rates_per_s"]["x"] for one in periods] == [5, 20, 40, 20, 5]
    assert [one["cost_usd_per_h"] for one in periods] == pytest.approx([0.3, 0.4, 0.5, 0.4, 0.3], abs=5e-3)
    assert [one.get("accuracy") for one in periods] == pytest.approx([None, 86.0, 86.0, 86.0, None])
    shares = {part["selection"]["first"]: part["share"] for part in periods[1]["selections"]}
    assert shares == pytest.approx({"two": 0.6, "five": 0.4})
    assert [one["loads"] for one in periods] == [0, 1, 1, 0, 0], "a box with the other variant, then one more of `five`"
    assert found["change_usd"] == pytest.approx(2 * START_USD, abs=1e-6), "downloads cost next to nothing"
    assert found["bound_usd"] <= found["total_usd"] <= found["peak_usd"]


def test_the_cost_of_a_mixture_at_lower_rates_is_that_of_its_routes_in_proportion(
    scales: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(scales, capsys, *given(*EXCLUSIVE, "slo.accuracy={mean: 86}", "migration.start=100 USD"))
    assert len({one["plan"] for one in found["periods"]}) == 1
    assert run(["plan", str(scales), *given(*EXCLUSIVE, "slo.accuracy={mean: 86}", "sources.x.rate=40/s")]) == 0
    capsys.readouterr()
    peak = from_document(read_document(scales / "plan.json")[0])
    for one in found["periods"]:
        expected = peak.cost.compute_usd_per_h + peak.cost.network_usd_per_h * one["rates_per_s"]["x"] / 40
        assert one["cost_usd_per_h"] == pytest.approx(expected, rel=1e-6)
        assert one["accuracy"] == pytest.approx(86.0)


def test_a_plan_that_is_not_accurate_enough_serves_no_period(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each plan has just its mean: one for fewer requests has too few boxes, whatever changes cost."""
    options = (*EXCLUSIVE[1:], "workers.box.count=6", "slo.accuracy={mean: 95}", "migration.start=100 USD")
    dear = planned(scales, capsys, *given(*options))
    assert [one["cost_usd_per_h"] for one in dear["periods"]] == pytest.approx([0.7] * 5, abs=5e-3)
    assert dear["peak_usd"] == pytest.approx(dear["total_usd"])


def test_penalties_are_weighed_but_not_paid(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = given(*EXCLUSIVE, "slo.accuracy={mean: 90, penalty: 0.02 USD/h}")
    found = planned(scales, capsys, *options)
    periods = found["periods"]
    # 4 of 15 points on a box of 0.1 USD/h at 20/s; at 40/s a box of `five` would gain only 3 points.
    assert [one.get("penalty_usd", 0.0) for one in periods] == pytest.approx([0, 0.24, 0.6, 0.24, 0], abs=1e-6)
    assert [one["cost_usd_per_h"] for one in periods] == pytest.approx([0.3, 0.4, 0.3, 0.4, 0.3], abs=5e-3)
    assert found["penalty_usd"] == pytest.approx(1.08)
    assert found["total_usd"] == pytest.approx(sum(one["cost_usd"] + one["change_usd"] for one in periods))
    assert found["bound_usd"] <= found["total_usd"] + found["penalty_usd"] <= found["peak_usd"] + 1e-9
    assert run(["calendar", str(scales), str(scales / "day.csv"), *options]) == 0
    assert "with penalties of soft targets" in " ".join(capsys.readouterr().out.split())


def test_losses_are_borne_in_every_period(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spare = ("workers.server.count=4", "workers.box.count=6", "slo.survive=1 worker")
    found = planned(scales, capsys, *given(*EXCLUSIVE, *spare, "slo.accuracy={mean: 86}"))
    costs = [one["cost_usd_per_h"] for one in found["periods"]]
    assert costs == pytest.approx([0.6, 0.8, 0.9, 0.8, 0.6], abs=5e-3), "a second server, and one box more of each"
    folder = scales / "plans"
    arguments = [
        "calendar",
        str(scales),
        str(scales / "day.csv"),
        *given(*EXCLUSIVE, *spare, "slo.accuracy={mean: 86}"),
    ]
    assert run([*arguments, "--plans", str(folder)]) == 0
    assert "60 % of the requests get first two" in " ".join(capsys.readouterr().out.split())
    for path in folder.iterdir():
        plan = from_document(read_document(path)[0])
        problem = build_problem(load_project(scales, plan.overrides))
        for loss in losses(plan, plan.slo.survives):
            left = plan_after(problem, plan, loss)
            assert left is not None
            assert not evaluate(replace(problem, slo=replace(problem.slo, survives=())), left).violations


@pytest.mark.slow
def test_a_mixture_in_time_serves_only_rates_up_to_its_own(scales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed = ("slo.latency_p99=400 ms", "sources.x.arrivals=poisson", "migration.start=100 USD")
    found = planned(scales, capsys, *given(*EXCLUSIVE, "slo.accuracy={mean: 86}", *timed))
    for one in found["periods"]:
        assert one["loads"] == 0
        planned_per_s = float(one["command"].partition("sources.x.rate=")[2].partition("/s")[0])
        assert planned_per_s >= one["rates_per_s"]["x"], "it was simulated for that rate"


def test_a_trace_of_minutes_is_shown_in_minutes(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{360 * at},camera,{rate}\n" for at, rate in enumerate((2, 30, 30, 2)))
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    command = ["calendar", str(shop), str(shop / "day.csv"), "--plot", str(shop / "day.svg")]
    assert run([*command, "--set", "migration.start=0 USD"]) == 0
    text = capsys.readouterr().out
    assert " in 24 min: " in text
    (first,) = (line for line in text.splitlines() if line.lstrip().startswith("00:00 "))
    assert "as before" not in first
    picture = (shop / "day.svg").read_text(encoding="utf-8")
    assert "minutes" in picture and "hours" not in picture
    assert all(f">{tick}</text>" in picture for tick in (3, 9, 24))
