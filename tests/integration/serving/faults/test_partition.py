"""The link between edge and cloud drops, and a gateway dies with requests on disk: with real processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.serving import Client, RequestError, Running, read_state
from jellybean.serving.errors import KeptError
from jellybean_solver import Deliver
from jellybean_solver.model.plan_document import Document
from tests.support.cut_link import run_over_a_link
from tests.support.steady_load import SteadyLoad
from tests.support.tiny_models import make_plan, scale
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

lasting = pytest.mark.parametrize("seconds", [3.0, pytest.param(30.0, marks=pytest.mark.nightly)])


def plan(root: Path, deliver: Deliver, *third: str) -> Document:
    """double at the edge, then triple on the workers named."""
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    routes = [(1 / len(third), {"double": "edge-1", "triple": worker}) for worker in third]
    return make_plan(root, operators, routes, sources={"x": "edge"}, deliver=deliver)


def numbered(number: int) -> dict[str, np.ndarray]:
    return {"x": np.array([[number, 0, 0, 1]], np.float32)}


def check(answer: dict[str, np.ndarray], number: int) -> None:
    assert answer["triple"].tolist() == [[6 * number, 0, 0, 6]]


def keep(client: Client, number: int) -> None:
    """Send a request until it is known to be kept: a client whose own deadline passes first sends it again."""
    while True:
        try:
            client.infer(numbered(number), request_id=f"r{number}", timeout_s=0.3)
        except KeptError as error:
            assert error.request_id == f"r{number}"
            return
        except RequestError as error:
            assert error.status == "DEADLINE_EXCEEDED"
        else:
            raise AssertionError("it was answered")


@lasting
def test_the_edge_serves_on_what_it_can_and_nothing_is_lost(tmp_path: Path, seconds: float) -> None:
    document = plan(tmp_path, Deliver.IN_TIME, "edge-1", "cloud-1")
    with run_over_a_link(tmp_path, document, ("edge-1", "cloud-1")) as run, Client(run.address) as client:
        rss = {name: psutil.Process(process.pid).memory_info for name, process in run.processes.items()}
        with SteadyLoad(run.address, 25.0, factor=6.0, timeout_s=30.0) as load:
            wait_until(lambda: load.sent > 50)
            before = {name: info().rss for name, info in rss.items()}
            run.link.cut()
            began_s = time.monotonic()
            wait_until(lambda: client.status().workers["cloud-1"] == "gone")
            left_out_s = time.monotonic() - began_s
            time.sleep(max(0.0, seconds - left_out_s))
            grown = {name: info().rss - before[name] for name, info in rss.items()}
            wait_until(lambda: client.status().requests_in_hand < 60)  # while the link is cut: they do not pile up
            run.link.heal()
            wait_until(lambda: client.status().state == "ready")
        load.check()
        assert max(grown.values()) < 20 * 2**20


@pytest.mark.nightly
def test_what_must_be_delivered_waits_on_disk_for_the_link(tmp_path: Path) -> None:
    """All routes cross the link, which is down for 30 s: requests are kept; others fail at their deadline (below)."""
    document = plan(tmp_path, Deliver.EVENTUALLY, "cloud-1")
    with run_over_a_link(tmp_path, document, ("edge-1", "cloud-1")) as run, Client(run.address) as client:
        check(client.infer(numbered(1), request_id="r1"), 1)
        run.link.cut()
        end_s, count = time.monotonic() + 30.0, 1
        while time.monotonic() < end_s:
            count += 1
            keep(client, count)
        assert client.status().kept == count - 1
        with pytest.raises(KeptError):
            client.answer("r2", timeout_s=0.1)
        with pytest.raises(RequestError, match="no request 'r0' is kept"):
            client.answer("r0")
        run.link.heal()
        for number in range(1, count + 1):
            check(client.answer(f"r{number}", timeout_s=60.0), number)
        check(client.infer(numbered(2), request_id="r2"), 2)  # the id was answered: that answer is the answer
        with pytest.raises(RequestError, match="its id is known here with other inputs"):
            client.infer(numbered(99), request_id="r2")
        assert client.status().kept == 0


@pytest.mark.nightly
def test_a_worker_that_the_gateway_reaches_and_another_does_not_is_gone_round(tmp_path: Path) -> None:
    """The hop from edge-1 to cloud-1 alone is cut: one request a second tries it, and then goes the other way."""
    document = plan(tmp_path, Deliver.IN_TIME, "edge-1", "cloud-1")
    workers = ("edge-1", "cloud-1")
    with (
        run_over_a_link(tmp_path, document, workers, crosses=lambda *hop: set(hop) == set(workers)) as run,
        Client(run.address) as client,
    ):
        with SteadyLoad(run.address, 25.0, factor=6.0, timeout_s=30.0) as load:
            wait_until(lambda: load.sent > 50)
            run.link.cut()
            wait_until(lambda: client.status().retried > 0)
            began_s, before = time.monotonic(), client.status().retried
            time.sleep(3.0)
            tried = client.status().retried - before
            assert tried <= 2 * (time.monotonic() - began_s) + 2
            assert client.status().state == "ready"  # both workers are there
            run.link.heal()
        load.check()


@pytest.mark.nightly
def test_others_fail_at_their_deadline_and_say_why(tmp_path: Path) -> None:
    document = plan(tmp_path, Deliver.IN_TIME, "cloud-1")
    with run_over_a_link(tmp_path, document, ("edge-1", "cloud-1")) as run, Client(run.address) as client:
        run.link.cut()
        wait_until(lambda: client.status().workers["cloud-1"] == "gone")
        with pytest.raises(RequestError, match=r"no route was open within 1(\.\d+)? s: .*cloud-1 is gone") as caught:
            client.infer(numbered(1), timeout_s=1.0)
        assert caught.value.status == "DEADLINE_EXCEEDED"


def test_kept_requests_survive_the_gateway(tmp_path: Path, start: Callable[..., Running]) -> None:
    running = start(tmp_path, plan(tmp_path, Deliver.EVENTUALLY, "cloud-1"))

    def pid(name: str) -> int:
        return next(process.pid for process in read_state(tmp_path).processes if process.name == name)

    with Client(running.gateway_address) as client:
        os.kill(pid("cloud-1"), signal.SIGSTOP)
        for number in range(10):
            keep(client, number)
        killed = pid("gateway")
        os.kill(killed, signal.SIGKILL)
        os.kill(pid("cloud-1"), signal.SIGCONT)
        wait_until(lambda: pid("gateway") != killed)
    with Client(running.gateway_address) as client:

        def ready() -> bool:
            try:
                return client.status().state == "ready"
            except RequestError:
                return False

        wait_until(ready)
        for number in range(10):
            check(client.answer(f"r{number}", timeout_s=60.0), number)
        assert client.status().kept == 0
    with closing(sqlite3.connect(tmp_path / ".jellybean/spool.db")) as database:
        answered = Counter(name for (name,) in database.execute("SELECT id FROM answers"))
    assert answered == {f"r{number}": 1 for number in range(10)}
