"""The launcher reports what ended a run, not what followed from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from jellybean.training.errors import TrainingError
from jellybean.training.processes.launch import RESTARTS, _end_all, _has_failed, _reason, run_attempts


def _failed(codes: dict[int, int]) -> dict[int, ProcessFailure]:
    return {rank: ProcessFailure(rank, 100 + rank, code, "/nowhere") for rank, code in codes.items()}


@pytest.mark.parametrize(
    ("codes", "reports", "told"),
    [
        ({0: 1, 1: -signal.SIGTERM}, {"crash-0": "nets.py:3: row 7 is odd"}, "nets.py:3: row 7 is odd"),
        ({0: -signal.SIGTERM, 1: 1}, {"lost-1": "lost the connection"}, "lost the connection"),
        ({0: 1, 1: -signal.SIGKILL}, {"lost-0": "lost the connection"}, "rank 1 was killed by SIGKILL"),
        ({0: -signal.SIGKILL}, {"still-1": "rank 0 has not responded"}, "rank 0 has not responded"),
        ({0: -signal.SIGTERM}, {}, "rank 0 was killed by SIGTERM"),
        ({1: 3}, {}, "rank 1 ended with status 3"),
        ({0: 9, 1: 1}, {"lost-1": "lost the connection"}, "rank 0 ended with status 9"),
        ({0: 9, 1: -signal.SIGTERM}, {}, "rank 0 ended with status 9"),
    ],
)
def test_the_cause_comes_first(tmp_path, codes, reports, told):
    for name, text in reports.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert _reason(tmp_path, _failed(codes)) == told


def _attempts(reasons: Sequence[str], positions: Sequence[int]) -> tuple[str, list[str]]:
    """How a run of attempts that end so, at these checkpoints, ends; and what is said meanwhile."""
    said: list[str] = []
    why, at = iter(reasons), iter(positions)
    with pytest.raises(TrainingError) as caught:
        run_attempts(lambda folder: next(why), said.append, lambda: next(at))
    return str(caught.value), said


@pytest.mark.parametrize(
    "why", ["rank 0 ended with status 9", "no rank has made progress for 10 s", "killed by SIGSEGV"]
)
def test_a_fault_that_comes_back_is_not_tried_again(why: str) -> None:
    message, said = _attempts([why] * 2, [0, 0])
    assert message == f"{why} (twice)"
    assert len(said) == 1


@pytest.mark.parametrize(
    ("reasons", "positions"),
    [
        (["rank 0 was killed by SIGKILL"] * 4, [0] * 4),
        (["rank 0 ended with status 9"] * 4, [0, 1, 2, 3]),
        (["a", "b", "a", "b"], [0] * 4),
    ],
)
def test_one_that_may_pass_is_tried_again(reasons: list[str], positions: list[int]) -> None:
    message, said = _attempts(reasons, positions)
    assert message.startswith(f"{reasons[-1]}; given up after {RESTARTS} restarts")
    assert len(said) == RESTARTS


@pytest.fixture
def sleeping() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


class _Context:
    """The processes of a run, as torch has them."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def close(self, death_sig: signal.Signals, timeout: int) -> None:
        for process in self.processes:
            process.wait(60)


def test_a_process_that_is_stopped_ends_with_the_others(sleeping: list[subprocess.Popen[bytes]]) -> None:
    stopped, failed = sleeping
    stopped.send_signal(signal.SIGSTOP)
    assert not any(_has_failed(process.pid) for process in sleeping)
    failed.kill()
    os.waitid(os.P_PID, failed.pid, os.WEXITED | os.WNOWAIT)
    assert [_has_failed(process.pid) for process in sleeping] == [False, True]
    _end_all(_Context(sleeping))  # type: ignore[arg-type]
    assert [process.returncode for process in sleeping] == [-signal.SIGTERM, -signal.SIGKILL]


_FORKING = """
import os, sys
from pathlib import Path
from jellybean.training.errors import TrainingError
from jellybean.training.processes.folder_lock import lock_folder

folder = Path(sys.argv[1])
waits, goes_on = os.pipe()
ready, says = os.pipe()
with lock_folder(folder):
    assert len(os.listdir("/proc/self/task")) == 1
    child = os.fork()
    if not child:
        os.close(goes_on)
        os.write(says, b"x")
        os.read(waits, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        with lock_folder(folder):
            print("locked twice")
    except TrainingError as error:
        print(error)
with lock_folder(folder):
    print("free while the child lives")
os.close(goes_on)
os.waitpid(child, 0)
"""


def test_a_process_that_is_forked_does_not_hold_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKING, str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].startswith("another jellybean train is running")
    assert lines[1:] == ["free while the child lives"]
