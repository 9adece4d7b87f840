"""Processes that read rows for a rank end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.support.paths import ROOT
from tests.support.waiting import wait_until


def test_a_worker_of_a_killed_rank_ends() -> None:
    command = [sys.executable, "-m", "tests.integration.training.reading_rank"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as rank:
        assert rank.stdout is not None
        worker = int(rank.stdout.readline())
        assert worker != rank.pid
        os.kill(worker, 0)
        rank.send_signal(signal.SIGKILL)
    # The rank's output has been read to its end: neither the worker nor its fork server holds it any more.
    wait_until(lambda: not Path("/proc", str(worker)).exists())
