"""The process pool forks only where no other thread can hold a lock that the child would wait for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from jellybean_agent.execution.process_pool import ModelProcessPool

# OpenBLAS ends its threads before a fork, and starts them again when it next needs them.
THREADS_OF_AN_AGENT = """
from pathlib import Path
import jellybean_agent.__main__
from jellybean_agent.execution.process_pool import ModelProcessPool

def threads(process):
    return len(list(Path(f"/proc/{process}/task").iterdir()))

with ModelProcessPool() as pool:
    _, model_process = pool.new_process()
    print(threads("self"), threads(pool.pid), threads(model_process))
"""


def test_an_agent_its_fork_server_and_a_new_model_process_have_one_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS_OF_AN_AGENT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "1", "1"]


def test_a_process_with_a_thread_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="reader")
    thread.start()
    try:
        with pytest.raises(RuntimeError, match=r"a process with threads must not fork \(.*reader.*\)"):
            ModelProcessPool().start()
    finally:
        stop.set()
        thread.join()
