"""`workers.W.max_starts`: a change of plan starts at most so many workers of a pool."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_any_project
from jellybean.errors import DocumentError
from jellybean.planning.plan_file import current_plan, read_document
from jellybean_solver import startable, to_document
from tests.support.unlike_sites import INFRASTRUCTURE, write_shops

BUSY = ("--set", "sources.camera.rate=30/s")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A single shop with a plan for few requests, which one box serves."""
    folder = write_shops(tmp_path)
    text = INFRASTRUCTURE.replace("sites: {store: stores.csv}\n", "")
    (folder / "infrastructure.yaml").write_text(text, encoding="utf-8")
    (folder / "stores.csv").unlink()
    assert run(["plan", str(folder), "--set", "sources.camera.rate=2/s"]) == 0
    return folder


def workers(plan: Path) -> Counter[str]:
    return Counter(worker.pool for worker in read_document(plan)[1].workers)


def changed(shop: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Counter[str], list[str]]:
    """The workers of the plan that a change leads to, by pool, and its notes."""
    capsys.readouterr()
    arguments = ["plan", str(shop), "--from", str(shop), *BUSY, "--out", str(shop / "next.json"), "--json"]
    assert run([*arguments, *(part for one in options for part in ("--set", one))]) == 0
    return workers(shop / "next.json"), json.loads(capsys.readouterr().out)["replan"]["notes"]


def test_a_change_starts_no_more_than_may_be_started(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert workers(shop / "plan.json") == {"box": 1}
    assert changed(shop, capsys)[0] == {"box": 2, "gpu": 1}
    slow, notes = changed(shop, capsys, "workers.box.max_starts=0")
    assert slow["box"] <= 1
    assert any("1 of the 2 workers of box can be used" in note for note in notes)
    assert changed(shop, capsys, "workers.box.max_starts=1")[0] == {"box": 2, "gpu": 1}


def test_where_too_few_may_be_started_it_is_said(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("workers.box.max_starts=0", "workers.gpu.max_starts=0")
    arguments = ["plan", str(shop), "--from", str(shop), *BUSY, *(x for one in options for x in ("--set", one))]
    assert run(arguments) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "0 of the 6 workers of gpu can be used: a change starts at most 0 beside those that run" in said


def test_a_calendar_makes_no_change_that_starts_more(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n0,camera,2\n43200,camera,30\n", encoding="utf-8")
    capsys.readouterr()
    found, gpus = {}, {}
    for most in (0, 1):
        plans = shop / f"plans-{most}"
        options = ["--set", f"workers.gpu.max_starts={most}", "--plans", str(plans), "--json"]
        assert run(["calendar", str(shop), str(shop / "day.csv"), *options]) == 0
        found[most] = json.loads(capsys.readouterr().out)
        gpus[most] = {workers(path)["gpu"] for path in plans.iterdir()}
    assert gpus == {0: {1}, 1: {0, 1}}
    assert found[0]["limited_by"] == ["gpu"]
    assert found[1]["total_usd"] < found[0]["total_usd"]


def calendar(shop: Path, capsys: pytest.CaptureFixture[str], *options: str, json_: bool = True) -> str:
    """The calendar of two busy hours a day, of which boxes and a gpu can serve the requests."""
    rows = "0,camera,2\n72000,camera,30\n79200,camera,2\n86400,camera,2\n"
    (shop / "day.csv").write_text("time_s,source,rate_per_s\n" + rows, encoding="utf-8")
    text = (shop / "infrastructure.yaml").read_text(encoding="utf-8").replace("0.05 USD/GiB", "0 USD/GiB")
    (shop / "infrastructure.yaml").write_text(text, encoding="utf-8")
    capsys.readouterr()
    settings = ("workers.box.count=4", "workers.gpu.price=0.08 USD/h", *options)
    given = [part for one in settings for part in ("--set", one)]
    assert run(["calendar", str(shop), str(shop / "day.csv"), *given, *(["--json"] if json_ else [])]) == 0
    return capsys.readouterr().out


def test_a_calendar_finds_plans_that_can_be_started(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two hours need a gpu, which is not started again, or two boxes more; the gpu all day costs more than these."""
    free = json.loads(calendar(shop, capsys))
    assert "limited_by" not in free
    found = json.loads(calendar(shop, capsys, "workers.gpu.max_starts=0"))
    assert found["limited_by"] == ["gpu"]
    assert found["unlimited_usd"] == pytest.approx(free["total_usd"])
    assert free["total_usd"] < found["total_usd"] < 0.8 * found["peak_usd"]
    busy = next(one for one in found["periods"] if one["rates_per_s"]["camera"] == 30)
    assert "--set workers.gpu.count=0" in busy["command"]
    settings = [f"--set={one}" for one in busy["command"].replace("'", "").split(" --set ")[1:]]
    assert run(["plan", str(shop), "--dry-run", "--json", *settings]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == busy["plan"]
    told = " ".join(calendar(shop, capsys, "workers.gpu.max_starts=0", json_=False).split())
    assert "if workers.gpu.max_starts ruled out no change" in told


def test_where_no_plan_can_be_started_the_calendar_keeps_the_workers(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(calendar(shop, capsys, "workers.gpu.max_starts=0", "workers.box.max_starts=0"))
    assert found["limited_by"] == ["box", "gpu"]
    assert {one["plan"] for one in found["periods"]} == {found["periods"][0]["plan"]}
    assert found["bound_usd"] <= found["unlimited_usd"] < found["total_usd"] == pytest.approx(found["peak_usd"])


def test_a_limit_of_starts_leaves_the_plan_that_is_there(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shop / "infrastructure.yaml"
    assert run(["plan", str(shop)]) == 0
    before = read_document(shop / "plan.json")[0]["hash"]
    text = path.read_text(encoding="utf-8").replace("price: 0.60 USD/h", "price: 0.60 USD/h, max_starts: 1")
    path.write_text(text, encoding="utf-8")
    plan, renewed = current_plan(load_any_project(shop))
    assert (to_document(plan)["hash"], renewed) == (before, "")


def test_reserved_workers_are_not_started(shop: Path) -> None:
    options = ("workers.gpu.max_starts=1", "workers.gpu.terms=reserved")
    with pytest.raises(DocumentError, match="reserved workers run whether or not a plan uses them"):
        load_any_project(shop, options)


def test_where_sites_differ_a_change_reaches_the_workers_that_a_plan_does(tmp_path: Path) -> None:
    folder = write_shops(tmp_path)
    assert run(["plan", str(folder)]) == 0
    before = read_document(folder / "plan.json")[1]
    problem = build_problem(load_any_project(folder))
    assert startable(problem, before) == problem
    limited = startable(build_problem(load_any_project(folder, ("workers.gpu.max_starts=0",))), before)
    running = Counter(worker.pool for worker in before.workers)["gpu"]
    assert [pool.count for pool in limited.pools if pool.name == "gpu"] == [running]
    assert running < 6
    berlin = [variant for one in limited.operators if one.name.startswith("berlin/") for variant in one.variants]
    assert {pool for variant in berlin for pool in variant.service} == {"berlin/box", "gpu"}
