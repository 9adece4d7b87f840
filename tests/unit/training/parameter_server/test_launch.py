"""The launcher of workers and servers."""

from __future__ import annotations

import errno
import json
import subprocess

import psutil
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import TrainingError
from jellybean.training.parameter_server.launch import _Processes


def test_processes_that_were_started_end_if_another_cannot_be_started(tmp_path, monkeypatch):
    """As when the system has no process left for it."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        if len(started) == 2:
            raise OSError(errno.EAGAIN, "no more processes")
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    processes = _Processes(["-c", "import time; time.sleep(600)"], 2, 1, tmp_path, lambda _: None)
    with pytest.raises(OSError, match="no more processes"), processes:
        pass
    assert len(started) == 2
    try:
        assert not any(psutil.pid_exists(process.pid) and process.poll() is None for process in started)
    finally:
        for process in started:
            process.kill()


SERVER_ENDS = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    time.sleep(600)
for name, text in REPORTS.items():
    open(os.path.join(FOLDER, name), "w").write(text)
if STATUS < 0:
    os.kill(os.getpid(), -STATUS)
sys.exit(STATUS)
"""


def _watch(folder, status: int, reports: dict[str, str]) -> str | None:
    """Watch a worker, and a server that ends with a status after processes reported."""
    constants = {"FOLDER": str(folder), "STATUS": status, "REPORTS": reports}
    values = "".join(f"{name} = {json.dumps(value)}\n" for name, value in constants.items())
    with _Processes(["-c", values + SERVER_ENDS], 1, 1, folder, lambda _: None) as processes:
        return processes.watch()


@pytest.mark.parametrize(
    ("status", "reports", "expected"),
    [
        (1, {"lost-0": "the server is gone", "crash-1": "row 7 is odd"}, "row 7 is odd"),
        (1, {"lost-0": "the server is gone", "still-1": "no gradient of any worker"}, "no gradient of any worker"),
        (-9, {"lost-0": "the server is gone", "crash-0": "row 7 is odd"}, "parameter server 0 was killed by SIGKILL"),
        (-15, {"lost-0": "the server is gone"}, "parameter server 0 was killed by SIGTERM"),
        (3, {}, "parameter server 0 ended with status 3"),
    ],
)
def test_the_cause_of_a_servers_end_comes_first(tmp_path, status, reports, expected):
    assert _watch(tmp_path, status, reports) == expected


def test_what_a_person_must_fix_ends_the_run(tmp_path):
    with pytest.raises(TrainingError, match="the disk is full"):
        _watch(tmp_path, 1, {"final-1": "the disk is full", "crash-1": "row 7 is odd"})
