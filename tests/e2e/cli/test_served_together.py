"""Two workflows served on one fleet: each with its own clients, limits, figures and part of the cost."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.serving import Client, RequestError, running_state
from tests.support.command_line import jellybean, jellybean_process
from tests.support.steady_load import SteadyLoad
from tests.support.two_scales import FACTORS, RATES_PER_S, make_two_scales
from tests.support.waiting import wait_until

ROW = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_two_scales(tmp_path_factory.mktemp("two") / "two")
    jellybean("plan", str(folder))
    return folder


@pytest.fixture
def project(planned: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "two"
    shutil.copytree(planned, folder)
    told = jellybean("up", str(folder), "--detach").stdout
    assert "serving two (shop, yard)" in told
    yield folder
    jellybean("down", str(folder))


@pytest.mark.slow
def test_each_answers_its_own_requests(project: Path) -> None:
    socket = running_state(project).gateway_address
    for name, factor in FACTORS.items():
        with Client(socket, workflow=name) as client:
            (answer,) = client.infer({"x": ROW}).values()
            assert np.array_equal(answer, ROW * factor)
            assert (client.status().workflow, client.status().answered) == (name, 1)
    with Client(socket) as client:
        status = client.status()
        assert (status.workflow, list(status.workflows), status.answered) == ("two", ["shop", "yard"], 2)
        with pytest.raises(RequestError, match="this gateway serves shop, yard: say which workflow"):
            client.infer({"x": ROW})
    told = jellybean("infer", str(project), "--workflow", "yard", "--input", "x=float32:[1, 2, 3, 4]").stdout
    assert "last: [[ 4.  8. 12. 16.]]" in told
    wrong = jellybean("infer", str(project), "--workflow", "barn", "--input", "x=float32:[1, 2, 3, 4]", status=1).stderr
    assert "no workflow 'barn' is served here, but shop, yard" in wrong


def _document(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    return found


def _paid_s(project: Path) -> dict[str, float]:
    """Seconds for which each workflow paid for its worker."""
    query = """SELECT workflow, SUM(worker_s) FROM ledger_work WHERE worker LIKE 'server%' GROUP BY workflow"""
    with contextlib.closing(sqlite3.connect(project / ".jellybean" / "ledger.db")) as ledger:
        return dict(ledger.execute(query))


@pytest.mark.slow
@pytest.mark.alone  # it compares times
def test_a_flood_of_one_is_its_own_and_leaves_the_other_in_time(project: Path) -> None:
    """Both run on the same box and the same server, which shop's flood would keep busy several times over."""
    socket = running_state(project).gateway_address
    flood = SteadyLoad(socket, 15 * RATES_PER_S["shop"], factor=FACTORS["shop"], workflow="shop")
    with flood, SteadyLoad(socket, RATES_PER_S["yard"], factor=FACTORS["yard"], workflow="yard") as load:
        wait_until(lambda: len(load.latencies_s) >= 40, timeout_s=60.0)
    load.check()
    flooded = float(np.median(flood.latencies_s))
    assert flooded > 0.5, "shop has more in flight than it can answer"
    assert np.quantile(load.latencies_s, 0.9) < flooded / 3, "yard waits for a run or two of shop's, not for its queue"
    assert not flood.wrong


@pytest.mark.slow
def test_another_plan_takes_over_for_both_and_may_leave_one_out(project: Path) -> None:
    socket, began_s = running_state(project).gateway_address, time.time()
    with Client(socket, workflow="shop") as shop, Client(socket, workflow="yard") as yard:
        with SteadyLoad(socket, RATES_PER_S["yard"], factor=FACTORS["yard"], workflow="yard") as load:
            jellybean("plan", str(project), "--set", "shop.slo.accuracy=90")
            jellybean("apply", str(project))
        load.check()
        (answer,) = shop.infer({"x": ROW}).values()
        assert np.array_equal(answer, ROW * 15.0)
        yard_file = project / "workflows" / "yard" / "workflow.yaml"
        served = yard_file.read_text(encoding="utf-8")
        yard_file.write_text(served + "admission: {worth: 0.000001 USD/h}\n", encoding="utf-8")
        told = jellybean("plan", str(project)).stdout
        assert "yard" in told
        leaving_s = time.time()
        jellybean("apply", str(project))
        left_s = time.time()
        with pytest.raises(RequestError, match="no workflow 'yard' is served here, but shop"):
            yard.infer({"x": ROW})
        (answer,) = shop.infer({"x": ROW}).values()
        assert np.array_equal(answer, ROW * 6.0)
        time.sleep(5.0)  # which yard does not pay for
        yard_file.write_text(served, encoding="utf-8")
        jellybean("plan", str(project))
        asked_s = time.time()
        jellybean("apply", str(project))
        back_s = time.time()
        (answer,) = yard.infer({"x": ROW}).values()
        assert np.array_equal(answer, ROW * 4.0)
    ended_s = time.time()
    jellybean("down", str(project))
    events = json.loads(jellybean("history", str(project), "--json").stdout)
    told = [one["what"] for one in events if one["what"] != "planned"]
    assert told == ["up", *["plan took over"] * 3, "down"], "once, and yard that is left out ends no run"
    paid_s = _paid_s(project)
    assert paid_s["shop"] >= ended_s - began_s, "of whichever plan"
    assert paid_s["yard"] >= leaving_s - began_s + ended_s - back_s
    assert paid_s["yard"] <= paid_s["shop"] - (asked_s - left_s), "yard pays for no time without it"
    jellybean("up", str(project), "--detach")  # for the fixture


@pytest.mark.nightly
def test_bench_measures_both_at_once_and_each_pays_its_part(project: Path) -> None:
    told = json.loads(jellybean_process("bench", str(project), "--duration", "5", "--json").stdout)
    assert told["workflows"].keys() == FACTORS.keys()
    document = _document(project)
    for part in document["workflows"]:
        found = told["workflows"][part["name"]]
        assert found["rate_per_s"] == RATES_PER_S[part["name"]]
        assert found["completed"] == found["offered"] > 0
        planned = sum(part["cost"].values())
        assert found["cost_usd_per_h"] == pytest.approx(planned, rel=0.02)
    report = json.loads(jellybean("report", str(project), "--json").stdout)
    for own in report["workflows"]:
        measured = {one["metric"]: one["measured"] for one in own["comparisons"]}
        assert measured["throughput_per_s"] == told["workflows"][own["name"]]["throughput_per_s"]
    assert all(worker["measured"] is not None for worker in report["workers"])
    jellybean_process("bench", str(project), "--duration", "2", "--rate-scale", "yard=2", "--json")
    again = json.loads(jellybean("report", str(project), "--json").stdout)
    assert again["workflows"] == report["workflows"], "shop beside twice yard's rate is not as planned"
    jellybean("down", str(project))
    by = {
        name: json.loads(jellybean("cost", str(project), "--by", name, "--json").stdout)
        for name in ("workflow", "operator", "worker", "client")
    }
    total = by["workflow"]["usd"]
    assert all(one["usd"] == pytest.approx(total, rel=1e-9) for one in by.values())
    assert {line["workflow"] for line in by["workflow"]["lines"]} == FACTORS.keys()
    assert {line["operator"] for line in by["operator"]["lines"]} >= {"shop/first", "shop/last", "yard/first"}
    shares = {line["workflow"]: line["workers_usd"] for line in by["workflow"]["lines"]}
    planned_shares = {part["name"]: part["cost"]["compute_usd_per_h"] for part in document["workflows"]}
    assert shares["shop"] / sum(shares.values()) == pytest.approx(
        planned_shares["shop"] / sum(planned_shares.values()), rel=0.02
    )
    jellybean("up", str(project), "--detach")  # for the fixture


@pytest.mark.slow
def test_a_certificate_may_be_of_one_workflow_only(planned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    shutil.copytree(planned, folder)
    jellybean("certs", str(folder), "--client", "shop/ann", "--client", "everyone")
    refused = jellybean("certs", str(folder), "--client", "barn/ann", status=2).stderr
    assert "the plan has no workflow 'barn'; it has shop, yard" in " ".join(refused.split())
    certs = folder / ".jellybean" / "certs"
    jellybean("up", str(folder), "--detach", "--port", "0", "--tls", str(certs / "gateway"))
    try:
        address = running_state(folder).clients_address
        with Client(address, tls=certs / "client" / "shop" / "ann") as ann:
            (answer,) = ann.infer({"x": ROW}).values()  # her certificate says which workflow
            assert np.array_equal(answer, ROW * FACTORS["shop"])
            assert ann.status().workflow == "shop"
        limited = pytest.raises(RequestError, match="the certificate is of workflow shop only, not of 'yard'")
        with Client(address, tls=certs / "client" / "shop" / "ann", workflow="yard") as ann, limited:
            ann.infer({"x": ROW})
        for name, factor in FACTORS.items():
            with Client(address, tls=certs / "client" / "everyone", workflow=name) as anyone:
                (answer,) = anyone.infer({"x": ROW}).values()
                assert np.array_equal(answer, ROW * factor)
    finally:
        jellybean("down", str(folder))
