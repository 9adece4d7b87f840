"""A command's process ends soon after a signal, whatever holds it up, and its child processes with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.cli.planning import plan as plan_command
from jellybean.process_end import child_process
from jellybean.termination import interrupts_blocked

WAIT_S = 120.0  # at most, for what ends by itself

HELD_UP = """\
import signal, subprocess, sys, time
from jellybean.process_end import ended_soon_after_signals

def last_words():
    print("interrupted", file=sys.stderr)

with ended_soon_after_signals(last_words, 0.05):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=sys.stdout)
    signal.signal(signal.SIGINT, lambda number, frame: None)  # as a library's call that takes long
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    print("ready", flush=True)
    while True:
        time.sleep(60)
"""


def _require_ended(process: int) -> None:
    """Wait for the end of a process, given by a file descriptor."""
    try:
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        assert waiting.poll(WAIT_S * 1e3), "it lives on"
    finally:
        os.close(process)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_holds_up_the_main_thread_does_not_hold_up_the_end(number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HELD_UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=WAIT_S)  # to the end of the child, which has the same output
    assert (process.returncode, output, errors) == (status, "", "interrupted\n")


def test_a_process_that_is_started_amid_ctrl_c_gets_none() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    with interrupts_blocked():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.communicate(timeout=WAIT_S)[0] == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_exception_ends_a_child_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), child_process() as pool:
        child = os.pidfd_open(pool.submit(os.getpid).result(WAIT_S))
        pool.submit(time.sleep, 600)
        raise KeyboardInterrupt
    _require_ended(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_outside_of_a_progress_bar(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_slowly(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(WAIT_S)

    monkeypatch.setattr(plan_command, "open_any_project", read_slowly)
    before = signal.getsignal(signal.SIGTERM)
    assert run(["plan", str(tmp_path)]) == 128 + number
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


ENDING = """\
import sys, threading, time
from jellybean.process_end import end_at_once_after_signals, ignore_signals
import atexit

atexit.register(ignore_signals)
end_at_once_after_signals(3)
threading.Thread(target=time.sleep, args=(600,)).start()
print("ended", flush=True)
"""

LAST = """\
import atexit, os, signal
from jellybean.process_end import ignore_signals

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

atexit.register(ignore_signals)
late = Late()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_ended_keeps_its_status(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"
    process.send_signal(number)
    assert process.communicate(timeout=WAIT_S) == ("", "")
    assert process.returncode == 3


def test_signals_while_the_interpreter_ends_change_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", LAST], check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
