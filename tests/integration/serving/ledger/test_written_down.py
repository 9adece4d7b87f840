"""What a run cost is written down whatever is killed meanwhile, and is what times and bytes cost by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jellybean import query
from jellybean.ledger import By
from jellybean.serving import Client, owner_endpoint
from jellybean.serving.local import replace_plan
from jellybean.serving.local.running import down
from jellybean_solver import Link
from tests.support.command_line import jellybean
from tests.support.killed_run import kill, lines
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RATE_PER_S = 40.0
USD_PER_GIB = 1e5
WORKER_USD_PER_H = 0.1
LINK = Link("edge", "cloud", USD_PER_GIB, None, 0.001)
MESSAGE_BYTES = 16.0


def cost_so_far(directory: Path) -> float:
    """What the gateway says that the run has cost."""
    with Client.at(owner_endpoint(directory)) as owner:
        families = list(text_string_to_metric_families(owner.metrics()))
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "jellybean_gateway_cost_usd_total")


@pytest.mark.slow
def test_the_ledger_of_a_run_in_which_everything_is_killed(tmp_path: Path, start) -> None:
    began_s = time.time()
    start(tmp_path, chain(tmp_path, links=[LINK]), detach=True)
    with Client.of(tmp_path) as client:
        with SteadyLoad(client.address, RATE_PER_S, factor=6.0) as load:
            wait_until(lambda: load.sent > 2 * RATE_PER_S)
            kill(tmp_path, client, "cloud-1")
            so_far = cost_so_far(tmp_path)
            kill(tmp_path, client, "gateway")
            wait_until(lambda: cost_so_far(tmp_path) >= so_far > 0.0)  # once the interval over its absence is written
            wait_until(lambda: load.outcomes["OK"] > 3 * RATE_PER_S)
            assert replace_plan.apply(tmp_path, chain(tmp_path, workers=("edge-1", "cloud-2"), links=[LINK]))
            kill(tmp_path, client, "gateway")
            wait_until(lambda: load.outcomes["OK"] > 5 * RATE_PER_S)
        assert not load.wrong
    down(tmp_path, timeout_s=5.0)
    most_s = time.time() - began_s  # for which a worker can have been paid

    ((usd, answered, failed),) = lines(tmp_path, By.WORKFLOW).values()
    traffic = answered * MESSAGE_BYTES / 2**30 * USD_PER_GIB
    sent_usd = lines(tmp_path, By.LINK)["edge -> cloud"][0]
    paid_s = (usd - sent_usd) / (WORKER_USD_PER_H / 3600)
    assert 0.0 < paid_s <= 3 * most_s, "two workers of each plan, three in all: none is paid twice for the same time"
    in_flight = 64  # what a kill of the gateway may take with it
    assert load.outcomes["OK"] <= answered <= load.outcomes["OK"] + 2 * in_flight
    assert answered + failed <= load.sent  # those that found no gateway did not arrive
    for by in By:
        found = lines(tmp_path, by)
        assert sum(amount for amount, _, _ in found.values()) == pytest.approx(usd, rel=1e-9), by
    by_operator = lines(tmp_path, By.OPERATOR)
    assert by_operator.keys() == {"double", "triple"}
    assert answered <= by_operator["double"][1] <= 1.2 * load.sent  # with retries; no worker's count is lost or doubled
    assert traffic * (1 - 1e-9) <= sent_usd <= 1.2 * traffic  # with retries
    assert len(lines(tmp_path, By.PLAN)) == 2
    told = json.loads(jellybean("history", str(tmp_path), "--json").stdout)
    first, last = (told[place]["at_unix_s"] for place in (0, -1))
    assert paid_s >= last - first, "every moment was paid for, also those without a gateway: two workers each"
    restart = "gateway started again"
    assert [entry["what"] for entry in told] == ["up", restart, "plan took over", restart, "down"]
    assert {entry["plan"] for entry in told} == lines(tmp_path, By.PLAN).keys()
    said = jellybean("history", str(tmp_path), "--plan", "zzz").stderr
    assert said.startswith(f"nothing of a plan zzz; the newest plans are {told[-1]['plan'][:12]}, ")


@pytest.mark.slow
def test_between_two_runs_nothing_costs_and_both_are_shown(
    tmp_path: Path, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.time()
    for number in (1, 2):
        start(tmp_path, chain(tmp_path, links=[LINK]), detach=True)
        with Client.of(tmp_path) as client:
            for _ in range(3):
                client.infer({"x": np.ones((1, 4), np.float32)})
        down(tmp_path, timeout_s=5.0)
        usd, answered, failed = lines(tmp_path, By.WORKFLOW)["tiny"]
        assert (answered, failed) == (3 * number, 0)
        most_s = time.time() - began_s
        assert usd <= most_s * WORKER_USD_PER_H * 2 / 3600 + 6 * MESSAGE_BYTES / 2**30 * USD_PER_GIB
        time.sleep(0.5)
    told = json.loads(jellybean("cost", str(tmp_path), "--by", "operator", "--json").stdout)
    assert {line["operator"] for line in told["lines"]} == {"double", "triple"}
    assert told["usd"] == pytest.approx(sum(line["usd"] for line in told["lines"]))
    assert set(query.cost(tmp_path, by="operator")["name"]) == {"double", "triple"}
    assert list(query.history(tmp_path)["what"]) == ["up", "down", "up", "down"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)  # without pandas
    ((day),) = query.served(tmp_path)
    assert (day["received"], day["answered"], day["lost"]) == (6, 6, 0)
    assert 0.0 < day["latency_p50_s"] <= day["latency_p99_s"]
    table = jellybean("cost", str(tmp_path)).stdout
    assert "USD per 1,000" in table
    text = jellybean("cost", str(tmp_path), "--by", "client", "--csv").stdout.splitlines()
    assert text[0] == "client,usd,workers_usd,traffic_usd,answered,failed"
    assert sum(int(line.split(",")[-2]) for line in text[1:]) == 6


def test_what_workers_did_is_written_before_a_drain_ends(tmp_path: Path, start) -> None:
    start(tmp_path, chain(tmp_path, links=[LINK]), detach=True)
    with Client.of(tmp_path) as client:
        wait_until(lambda: client.status().state == "ready")
        for _ in range(20):
            client.infer({"x": np.ones((1, 4), np.float32)})
    with Client.at(owner_endpoint(tmp_path)) as owner:
        assert owner.drain(5.0) == 0
    assert lines(tmp_path, By.OPERATOR)["double"][1] == 20  # the workers may end now
    down(tmp_path, timeout_s=5.0)
    assert lines(tmp_path, By.OPERATOR)["double"][1] == 20
