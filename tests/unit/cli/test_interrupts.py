"""Ctrl-C ends a command with status 130 and without a traceback, whatever a library makes of the interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.cli.failures import error_json, interrupt_behind
from jellybean.cli.init import Example, copy_example
from jellybean.errors import JellyBeanError
from jellybean.planning import project_plan
from jellybean.profiler import profiler

INTERRUPTED = """\
try:
    raise KeyboardInterrupt
except KeyboardInterrupt as interrupt:
    raise ImportError("_ARRAY_API is not PyCapsule object") from interrupt  # as pybind11 translates it
"""


SIGNALLED = """\
import os, signal

def net():
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("json_option", [[], ["--json"]])
@pytest.mark.parametrize("nets", [INTERRUPTED, SIGNALLED], ids=["in an import", "in a command"])
def test_an_interrupted_command(
    nets: str, json_option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
    (tmp_path / "nets.py").write_text(nets, encoding="utf-8")
    status = run(["pipeline", "profile", f"{tmp_path / 'nets.py'}:net", *json_option])
    shown = capsys.readouterr()
    assert (status, shown.err) == (130, "interrupted\n")
    assert not json_option or json.loads(shown.out)["error"]["kind"] == "interrupted"


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_an_interrupt_while_the_cli_itself_is_imported(json_option: list[str], tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, "-m", "jellybean", "plan", *json_option],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert (json.loads(ended.stdout) if json_option else ended.stdout) == (
        error_json("interrupted", "interrupted") if json_option else ""
    )


def test_a_failed_clean_up_after_an_interrupt_is_an_error_of_its_own() -> None:
    failed = JellyBeanError("the workers still run")
    failed.__context__ = KeyboardInterrupt()
    assert interrupt_behind(failed) is None
    assert interrupt_behind(ImportError("no module")) is None


@pytest.mark.usefixtures("default_sigterm")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_plan_says_what_it_knows(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "digits"
    copy_example(Example.DIGITS, project)

    def searched(*_: object, progress: Callable[[float, float, str], None], **__: object) -> None:
        progress(3, 12, "least p99 so far 73.0 ms for 1.31 USD/h (9 plans simulated)")
        os.kill(os.getpid(), number)

    monkeypatch.setattr(project_plan, "settle", searched)
    before = signal.getsignal(signal.SIGTERM)
    assert run(["plan", str(project), "--dry-run", "--stale"]) == status
    shown = capsys.readouterr().err
    assert "plan: interrupted at 30 of 100: least p99 so far 73.0 ms for 1.31 USD/h (9 plans simulated)" in shown
    assert shown.endswith("interrupted\n") and "Traceback" not in shown
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupted_profile_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "digits"
    copy_example(Example.DIGITS, project)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(profiler, "survey", interrupted)
    assert run(["profile", str(project), "--fresh"]) == 130
    shown = " ".join(capsys.readouterr().err.split())
    assert "profile: interrupted at" in shown
    assert (
        "finished measurements are kept, and the others as they were: the same command measures all of them again"
        in shown
    )
