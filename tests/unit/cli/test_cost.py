"""Times of the command cost, its amounts, and what it says of a ledger in which nothing is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from jellybean.cli.serving.accounts.cost import parse_time
from jellybean.documents import write_blank
from jellybean.serving import RunState
from jellybean.serving.run_state import write_state
from tests.support.command_line import jellybean
from tests.support.full_disk import fill, small_disk
from tests.support.run_processes import idle_process


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-11-20", 1795132800.0), ("2026-11-20T15:30", 1795188600.0), ("2026-11-20T15:30+01:00", 1795185000.0)],
)
def test_dates_are_in_utc_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(("text", "age_s"), [("7d", 604_800), ("90min", 5_400), ("1.5h", 5_400), ("2 w", 1_209_600)])
def test_ages_count_back_from_now(text: str, age_s: float) -> None:
    before_s = time.time()
    assert before_s <= parse_time(text) + age_s <= time.time()


@pytest.mark.parametrize("text", ["yesterday", "7", "7m", "", "2026-13-01"])
def test_what_is_no_time_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write an age"):
        parse_time(text)


def told(directory: Path, *options: str) -> str:
    return " ".join(jellybean("cost", str(directory), *options).stderr.split())


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A project on a disk without a free byte."""
    with small_disk(tmp_path / "small") as mount:
        write_blank(mount / "p")
        (mount / "p/.jellybean").mkdir()
        fill(mount)
        yield mount / "p"


@pytest.mark.parametrize("options", [(), ("--since", "1d"), ("--by", "operator")])
def test_a_full_disk_is_no_proof_that_nothing_was_served(full: Path, options: tuple[str, ...]) -> None:
    said = told(full, *options)
    small = full.parent
    assert said.startswith(f"nothing is in the ledger: {full}/.jellybean/ledger.db: the file system {small} is full ")
    assert "(0 bytes left): make room there" in said


def test_a_run_that_has_written_nothing_yet_is_said_to_be_up(tmp_path: Path) -> None:
    write_blank(tmp_path / "p")
    assert told(tmp_path / "p") == f"nothing was served yet: jellybean up {tmp_path / 'p'}"
    assert told(tmp_path / "p", "--since", "1d") == "nothing was served in this time"
    (tmp_path / "p/.jellybean").mkdir(exist_ok=True)
    with idle_process(tmp_path / "p") as gateway:
        write_state(tmp_path / "p", RunState("hash", "flow", "folder", "folder/1", "unix:none", processes=(gateway,)))
        said = told(tmp_path / "p")
    assert said.startswith(f"{tmp_path / 'p'} is up, and nothing is in its ledger yet")
    assert said.endswith("the gateway's log says why: log")
