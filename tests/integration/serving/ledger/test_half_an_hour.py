"""Half an hour of varying load in which everything is killed and plans are replaced costs what it costs by hand."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jellybean.ledger import By
from jellybean.serving import GATEWAY_NAME, Client, read_state
from jellybean.serving.local import replace_plan
from jellybean.serving.local.running import down
from jellybean_solver import Link
from tests.support.killed_run import kill, lines
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import chain

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

MINUTES = float(os.environ.get("JELLYBEAN_LEDGER_MINUTES", "30"))
RATES_PER_S = (40.0, 10.0, 80.0, 25.0, 60.0, 5.0)
LINK = Link("edge", "cloud", 1e4, None, 0.001)
WORKER_USD_PER_H = 0.1
SAMPLE_S = 0.05


@contextmanager
def worker_hours(directory: Path) -> Iterator[list[float]]:
    """What the launcher's list of workers sums up to: [hours], once it ends."""
    total, stop = [0.0], threading.Event()

    def sample() -> None:
        before_s = time.monotonic()
        while not stop.wait(SAMPLE_S):
            now_s, state = time.monotonic(), read_state(directory)
            workers = 0 if state is None else sum(one.name != GATEWAY_NAME for one in state.processes)
            total[0] += workers * (now_s - before_s) / 3600
            before_s = now_s

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield total
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(60 * MINUTES + 600)
def test_it_costs_what_processes_and_answers_cost_by_hand(tmp_path: Path, start) -> None:
    plans = [chain(tmp_path, workers=("edge-1", cloud), links=[LINK]) for cloud in ("cloud-1", "cloud-2")]
    outcomes: Counter[str] = Counter()
    sent = 0
    with worker_hours(tmp_path) as hours:
        start(tmp_path, plans[0], detach=True)
        with Client.of(tmp_path) as client:
            for number, rate_per_s in zip(range(12), itertools.cycle(RATES_PER_S), strict=False):
                with SteadyLoad(client.address, rate_per_s, factor=6.0) as load:
                    time.sleep(MINUTES * 60 / 12 / 2)
                    if number in (4, 8):
                        assert replace_plan.apply(tmp_path, plans[number // 4 % 2])
                    else:
                        names = ("gateway", "edge-1", "cloud-1" if not 4 <= number < 8 else "cloud-2")
                        kill(tmp_path, client, names[number % 3])
                    time.sleep(MINUTES * 60 / 12 / 2)
                assert not load.wrong
                outcomes.update(load.outcomes)
                sent += load.sent
        down(tmp_path, timeout_s=5.0)

    ((usd, answered, failed),) = lines(tmp_path, By.WORKFLOW).values()
    by_hand = hours[0] * WORKER_USD_PER_H + outcomes["OK"] * 16.0 / 2**30 * LINK.price_usd_per_gib
    print(f"{usd:.6f} USD, by hand {by_hand:.6f}; {answered} answered, {failed} failed, of {sent}; {outcomes}")
    assert usd == pytest.approx(by_hand, rel=0.005)
    gateway_kills = 4
    assert outcomes["OK"] <= answered <= outcomes["OK"] + 64 * gateway_kills  # what a kill may take with it
    assert answered + failed <= sent
    for by in By:
        found = lines(tmp_path, by)
        assert sum(amount for amount, _, _ in found.values()) == pytest.approx(usd, rel=1e-9), by
    assert len(lines(tmp_path, By.PLAN)) == 2
