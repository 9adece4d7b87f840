"""`plan --add`: sites that open later are planned beside the others, which do not move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.documents import build_problem, load_any_project
from jellybean.planning import PlanFile
from jellybean.planning.plan_file import read_document
from jellybean_solver import Plan, evaluate
from tests.plan_check import complaints
from tests.support.unlike_sites import INFRASTRUCTURE, random_stores, write_shops

SITES = 6


@pytest.fixture
def shops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A planned project of a few sites, of which another one opens."""
    stores = random_stores(SITES + 1, seed=3).splitlines()
    folder = write_shops(tmp_path, "\n".join(stores[:-1]) + "\n")
    assert run(["plan", str(folder)]) == 0
    write_shops(folder, "\n".join(stores) + "\n")
    capsys.readouterr()
    return folder


def routes(plan: Plan) -> dict[str, set[tuple[float, tuple[tuple[str, str], ...]]]]:
    """The routes of each site."""
    found: dict[str, set[tuple[float, tuple[tuple[str, str], ...]]]] = {}
    for route in plan.routes:
        own = tuple(sorted(route.workers.items()))
        found.setdefault(plan.workflow_of(own[0][0]), set()).add((route.weight, own))
    return found


def test_a_new_site_gets_what_is_left(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = PlanFile(shops).load().plan
    assert run(["plan", str(shops), "--add"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"added: shop-{SITES} {SITES} sites as before, with the same workers and routes" in text
    assert f"proven optimal beside {SITES} sites that stay as they were" in text
    plan = PlanFile(shops).load().plan
    assert complaints(build_problem(load_any_project(shops)), plan) == []
    assert len(plan.workflows) == SITES + 1
    now = routes(plan)
    assert {name: now[name] for name in routes(before)} == routes(before)
    assert {worker.name for worker in before.workers} <= {worker.name for worker in plan.workers}


def test_json_names_what_was_planned(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = PlanFile(shops).load().plan
    assert run(["plan", str(shops), "--add", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["added"] == {
        "new": [f"shop-{SITES}"],
        "changed": [],
        "dropped": [],
        "kept": SITES,
        "before_usd_per_h": before.cost.total_usd_per_h,
    }
    assert found["certificate"]["keeps"] == SITES
    assert PlanFile(shops).load().plan == before


@pytest.mark.slow
def test_others_read_that_not_all_was_planned_anew(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(shops), "--add"]) == 0
    capsys.readouterr()
    assert run(["simulate", str(shops), "--duration", "20"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert f"{SITES} of its {SITES + 1} workflows stayed as they were when others were added" in told


def test_sites_that_changed_or_closed(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = random_stores(SITES, seed=3).splitlines()
    stores[2] = stores[2].replace(stores[2].split(",")[1], "0.75/s")
    write_shops(shops, "\n".join([stores[0], *stores[2:]]) + "\n")
    assert run(["plan", str(shops), "--add", "--json"]) == 0
    added = json.loads(capsys.readouterr().out)["added"]
    assert (added["new"], added["changed"], added["dropped"]) == ([], ["shop-1"], ["shop-0"])
    assert complaints(build_problem(load_any_project(shops)), PlanFile(shops).load().plan) == []


def test_nothing_to_add(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(shops), "--add"]) == 0
    before = PlanFile(shops).load().plan
    capsys.readouterr()
    assert run(["plan", str(shops), "--add"]) == 0
    assert "nothing to add: the plan has every site" in capsys.readouterr().out
    assert routes(PlanFile(shops).load().plan) == routes(before)


@pytest.mark.slow
def test_what_stays_no_longer_fits(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"shop-{number},35/s,0,,,\n" for number in range(SITES))
    write_shops(shops, random_stores(0, seed=0) + rows)
    assert run(["plan", str(shops)]) == 0
    used = sum(worker.pool == "gpu" for worker in PlanFile(shops).load().plan.workers)
    assert used > 1
    fewer = INFRASTRUCTURE.replace("tier: cloud, count: 6", f"tier: cloud, count: {used - 1}")
    (shops / "infrastructure.yaml").write_text(fewer, encoding="utf-8")
    assert run(["plan", str(shops), "--add"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"the running plan cannot stay as it is: the plan uses {used} workers of pool gpu" in told
    assert "without --add" in told


def test_a_new_site_that_does_not_fit(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (shops / "stores.csv").open("a", encoding="utf-8") as file:
        file.write("huge,9000/s,0,,,\n")
    assert run(["plan", str(shops), "--add"]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert f"the {SITES} workflows of the plan stay as they are; without --add all are planned anew" in told


def test_new_sites_are_left_out_where_they_cost_more_than_they_are_worth(
    shops: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (shops / "stores.csv").read_text(encoding="utf-8").splitlines()[:-1]
    known = [f"{text[0]},admission.worth", *(f"{row}," for row in text[1:])]
    dear, fine = "dear,30/s,0,,,,0.01 USD/h", "fine,2/s,1,,,,0.90 USD/h"
    for new, served in (([dear], ()), ([dear, fine], ("fine",))):
        write_shops(shops, "\n".join([*known, *new]) + "\n")
        assert run(["plan", str(shops), "--add", "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [one["name"] for one in found["left_out"]] == ["dear"]
        assert set(found["workflows"]) == {*(f"shop-{number}" for number in range(SITES)), *served}
        assert run(["plan", str(shops), "--add", "--out", str(shops / "next.json")]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "left out: 1 site worth 0.0100 USD/h: dear" in told
        assert ("added: fine" in told) == bool(served)
        plan = read_document(shops / "next.json")[1]
        assert evaluate(build_problem(load_any_project(shops)), plan).complaints == ()


def test_what_does_not_fit_beside_the_plan_is_named_as_what_is_left(
    shops: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (shops / "stores.csv").open("a", encoding="utf-8") as file:
        file.write("huge,300/s,0,,2 Gbit/s,\n")
    assert run(["plan", str(shops), "--add", "--set", "workers.gpu.max_starts=0"]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "full pools: what is left of gpu-1" in told
    assert "a change starts at most 0 beside those that run (workers.gpu.max_starts)" in told


def test_options_that_exclude_each_other(shops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(shops), "--add", "--horizon", "2h"]) == 2
    assert "--horizon cannot be combined with --add" in " ".join(capsys.readouterr().err.split())
    assert run(["plan", str(shops), "--add", "--set", "sites.store=2"]) == 1
    assert "of several workflows, or of sites that differ" in " ".join(capsys.readouterr().err.split())
