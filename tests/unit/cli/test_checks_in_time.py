"""Commands that check, compare, measure and partition at their time limit: what is known, and what is missing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from jellybean.cli import documents, run
from jellybean.cli.init import Example, copy_example
from jellybean.cli.pipeline import partition as partition_command
from jellybean.cli.planning import diff as diff_command
from jellybean.cli.planning import profile as profile_command
from jellybean_agent.execution import load_check
from jellybean_solver import limited_work, to_document
from tests.support.hosting_plans import FLEETS, hosting
from tests.support.paths import PUBLISHED
from tests.support.silent_process import silent_process

LIMIT = ("--time-limit", "1min")
Over = Callable[[ModuleType], None]


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Over:
    """Gives a command a limit that is over when its work begins."""

    @contextmanager
    def no_time(seconds: float | None, **_: object) -> Iterator[None]:
        with limited_work(None if seconds is None else 0.0, lambda: 0.0):
            yield

    return lambda command: monkeypatch.setattr(command, "command_limit", no_time)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits") / "digits"
    copy_example(Example.DIGITS, folder)
    return folder


def test_validate_names_the_models_that_it_did_not_load(
    digits: Path, over: Over, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", str(digits), "--stale", *LIMIT]) == 0
    capsys.readouterr()
    over(documents)
    assert run(["validate", str(digits), "--stale", "--json", *LIMIT]) == 1
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["valid"], answer["problems"], answer["error"]["kind"]) == (None, [], "time_limit")
    assert len(answer["not_loaded"]) == 10
    assert "find find" in shown.err and "and 5 more" in shown.err


def test_validate_ends_a_load_at_its_time_limit(
    digits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One load may take two minutes; the limit was looked at between two models only."""
    process = silent_process()
    monkeypatch.setattr(load_check, "trial_process", lambda: process)
    monkeypatch.setattr(documents, "command_limit", lambda _: limited_work(0.02, time.monotonic))
    assert run(["validate", str(digits), "--stale", "--json", *LIMIT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["problems"], answer["error"]["kind"]) == (None, [], "time_limit")
    assert len(answer["not_loaded"]) == 10
    assert process.generation == 1  # nothing is started once the time is over


def test_a_problem_is_told_also_where_models_were_not_loaded(
    digits: Path, over: Over, capsys: pytest.CaptureFixture[str]
) -> None:
    over(documents)
    assert run(["validate", str(digits), "--stale", "--set", "slo.accuracy=many", *LIMIT]) == 2
    assert "slo.accuracy" in capsys.readouterr().err


def test_profile_keeps_what_it_measured_and_says_what_is_missing(
    digits: Path, over: Over, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (digits / "profiles.yaml").read_bytes()
    over(profile_command)
    assert run(["profile", str(digits), "--fresh", *LIMIT]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "the time limit ended the measurements at messages on the edges; not measured: survey" in shown
    assert "and the others as they were: the same command measures all of them again" in shown
    assert (digits / "profiles.yaml").read_bytes() == before


def test_diff_says_that_workers_were_not_matched_exactly(
    tmp_path: Path, over: Over, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = FLEETS["one model in common"]
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for side, path in enumerate(paths):
        plan = hosting({f"box-{number}": sets(number)[side] for number in range(70)})
        path.write_text(json.dumps(to_document(plan)), encoding="utf-8")
    assert run(["diff", *map(str, paths), *LIMIT]) == 1
    assert "the time limit" not in capsys.readouterr().err
    over(diff_command)
    assert run(["diff", *map(str, paths), *LIMIT]) == 1
    assert "the time limit ended the matching of workers" in capsys.readouterr().err
    assert run(["diff", str(paths[0]), str(paths[0]), *LIMIT]) == 0
    assert "the time limit" not in capsys.readouterr().err


def test_a_partition_has_its_bound_and_says_what_ended_the_search(
    over: Over, capsys: pytest.CaptureFixture[str]
) -> None:
    over(partition_command)
    command = ["pipeline", "plan", str(PUBLISHED / "pipedream" / "vgg16.txt"), "--workers", "4,4"]
    command += ["--bandwidth", "1e10,1e9", *LIMIT]
    assert run([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["termination"] == "time_limit"
    assert 0 < answer["bound_s"] < answer["objective_s"]
    assert sum(len(stage["layers"]) for stage in answer["stages"]) > 30
    assert run(command) == 0
    assert "where the time limit ended the search" in " ".join(capsys.readouterr().out.split())
