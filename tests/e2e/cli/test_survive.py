"""`slo.survive: 1 worker`: a plan with a spare for every worker, each of which is killed under load."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from jellybean.serving import Client, read_state
from jellybean_solver import from_document
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import wait_until

RATE_PER_S = 40.0
OPTIONS = [
    part
    for text in (
        "slo.survive=1 worker",
        "slo.latency_p99=2 s",
        "workers.box.count=4",
        "workers.server.count=4",
        f"sources.x.rate={RATE_PER_S:g}/s",
    )
    for part in ("--set", text)
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_scales_project(tmp_path / "scales")


@pytest.mark.slow
def test_each_worker_may_be_killed_under_load(project: Path) -> None:
    text = jellybean("plan", str(project), *OPTIONS).stdout
    assert "any of these may be lost: one of its 4 workers" in text
    plan = from_document(json.loads((project / "plan.json").read_text(encoding="utf-8")))
    assert sorted(worker.name for worker in plan.workers) == ["box-1", "box-2", "server-1", "server-2"]
    jellybean("up", str(project), "--detach")
    try:
        with Client.of(project) as client, SteadyLoad(client.address, RATE_PER_S, factor=6.0) as load:
            for worker in (*plan.workers, plan.workers[0]):
                state = read_state(project)
                assert state is not None
                pid = next(process.pid for process in state.processes if process.name == worker.name)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda name=worker.name: client.status().workers[name] == "gone")
                wait_until(lambda: client.status().state == "ready")
        load.check()
    finally:
        jellybean("down", str(project))
    assert load.outcomes.keys() == {"OK"}


def test_without_a_second_worker_there_is_no_such_plan(project: Path) -> None:
    done = jellybean("plan", str(project), "--set", "slo.survive=1 worker", status=3)
    assert "no plan holds after the loss of any one worker" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_running_plan_without_a_spare_is_replaced(project: Path) -> None:
    jellybean("plan", str(project))
    (project / "plan.json").rename(project / "running.json")
    start = ("--from", str(project / "running.json"), *OPTIONS, "--set", "migration.start=0.05 USD")
    told = json.loads(jellybean("plan", str(project), *start, "--json").stdout)
    decision = told["replan"]
    assert decision["verdict"] == "replace"
    assert any("survive: without box-1" in text for text in decision["running"]["broken"])
    assert sum(load["replicas"] for load in decision["migration"]["loads"]) == 2
    again = json.loads(jellybean("plan", str(project), "--from", str(project), *start[2:], "--json").stdout)
    assert (again["replan"]["verdict"], again["hash"]) == ("keep", told["hash"])


@pytest.mark.slow
def test_curves_and_calendars_hold_after_a_loss(project: Path) -> None:
    options = ("--json", "--rates", "1x", "--plot", str(project / "curve.svg"))
    told = json.loads(jellybean("frontier", str(project), *OPTIONS, *options).stdout)
    assert [corner["accuracy"] for corner in told["corners"]] == [80.0, 95.0]
    for corner in told["corners"]:
        assert corner["cost_usd_per_h"]["compute"] == pytest.approx(2 * 0.1 + 2 * 0.2), "two of each worker"
    assert told["rates"]["highest_scale"] > 1.0
    (project / "day.csv").write_text("time_s,source,rate_per_s\n0,x,5\n36000,x,600\n72000,x,5\n", encoding="utf-8")
    day = json.loads(jellybean("calendar", str(project), str(project / "day.csv"), *OPTIONS, "--json").stdout)
    assert day["periods"][0]["cost_usd_per_h"] >= 2 * 0.1 + 2 * 0.2
