"""The launcher of workers and servers."""

from __future__ import annotations

import errno
import subprocess

import psutil
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

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
