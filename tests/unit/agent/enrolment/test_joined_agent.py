"""The agent's command with --join, in this process: it serves the gateway's plan, and starts anew with the next one."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean_agent import command, file_sha256
from jellybean_protos import plan_format
from jellybean_protos.enrol.v1 import enrol_pb2
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.unit.agent.enrolment.test_join import Gateway, plan_of

# Connections that are open at the end close with the process, which does not end here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    gc.unfreeze()


class GatewayThread:
    """A gateway in a thread with a loop of its own."""

    def __init__(self, root: Path) -> None:
        self.gateway = Gateway(root)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self.gateway.start())

    def run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self.run(self.gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    thread = GatewayThread(tmp_path)
    yield thread.gateway
    thread.close()


def joined(
    gateway: Gateway, root: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> tuple[int, list[list[str]]]:
    """The status of an agent that joins, and the commands that it became. `meanwhile` runs in a thread beside it."""
    became: list[list[str]] = []
    monkeypatch.setattr(command.os, "execv", lambda _path, arguments: became.append(arguments))
    token = root / "token"
    token.write_text(gateway.token, encoding="utf-8")
    thread = threading.Thread(target=meanwhile)
    thread.start()
    options = [f"--join={gateway.enrols_at}", f"--token-file={token}", f"--state={root}/state", "--in-process"]
    status = command.main([*options, "--plan-every-s=0.05", "--drain-s=0", f"--listen=127.0.0.1:{free_port()}"])
    thread.join()
    return status, became


def test_an_agent_that_joins_serves_until_another_plan_comes(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_sigterm: None
) -> None:
    first = gateway.offer(plan_of(tmp_path))
    gateway.plans = [first, enrol_pb2.PlanResponse()]

    def change() -> None:
        wait_until(lambda: len(gateway.asked) >= 3)
        gateway.plans = [gateway.offer(plan_of(tmp_path, 3.0))]

    status, became = joined(gateway, tmp_path, monkeypatch, change)
    assert status == 0
    ((executable, *more),) = became
    assert executable == sys.executable
    assert more[:3] == ["-P", "-m", "jellybean_agent"]
    assert more[3] == f"--join={gateway.enrols_at}"
    assert {request.problem for request in gateway.asked} == {""}
    assert list((tmp_path / "state").glob("counters-*"))


def test_an_agent_that_cannot_serve_its_plan_says_so_and_waits_for_another(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_sigterm: None
) -> None:
    broken = plan_of(tmp_path)
    path = tmp_path / "models/double.onnx"
    path.write_bytes(b"no onnx")
    document = json.loads(json.dumps(broken).replace(broken["operators"][0]["model"]["sha256"], file_sha256(path)))
    document = {**document, "hash": plan_format.content_hash(document)}
    gateway.plans = [gateway.offer(document), enrol_pb2.PlanResponse()]

    def change() -> None:
        wait_until(lambda: any(request.problem for request in gateway.asked))
        gateway.plans = [gateway.offer(plan_of(tmp_path, 3.0))]

    status, became = joined(gateway, tmp_path, monkeypatch, change)
    assert (status, len(became)) == (0, 1)
    (problem, *_) = [request for request in gateway.asked if request.problem]
    assert problem.problem.startswith("double/only: not an ONNX file")
    assert problem.problem_plan == document["hash"]


def test_an_agent_that_is_refused_ends_with_the_reason(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([f"--join={gateway.enrols_at}", f"--state={tmp_path}/state", "--in-process"]) == 2
    assert "join with a new token (`jellybean token`)" in capsys.readouterr().err
