"""What is said of a full disk: one sentence with the file, the file system and the bytes that are left."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jellybean.documents import write_blank
from jellybean.folders import write_file
from jellybean_agent import describe_error
from tests.support.command_line import jellybean
from tests.support.full_disk import fill, small_disk


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as mount:
        fill(mount)
        yield mount


def sentence(file: Path, mount: Path) -> str:
    place = rf"{re.escape(str(file))}: the file system {re.escape(str(mount))}"
    return place + r" is full \([\d,]+ bytes left\): make room there"


def test_a_file_of_a_project_is_named(full: Path) -> None:
    with pytest.raises(OSError, match="No space") as error:
        write_file(full / "plan.json", "x" * 100_000)
    assert re.fullmatch(sentence(full / "plan.json", full), describe_error(error.value, name=True))
    assert {path.name for path in full.iterdir()} == {"fill"}


def test_an_example_that_does_not_fit(full: Path) -> None:
    told = " ".join(jellybean("init", "vqa", str(full / "p"), status=1).stderr.split())
    assert re.fullmatch(sentence(full / "p", full).replace(":", r"\S*:", 1), told)


def test_a_file_that_the_user_names(full: Path, tmp_path: Path) -> None:
    profile = tmp_path / "layers.txt"
    profile.write_text(
        "".join(
            f"n{at} -- layer -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, "
            "parameter_size=8.0\n"
            for at in range(2)
        )
        + "\tn0 -- n1\n",
        encoding="utf-8",
    )
    told = jellybean("pipeline", "plan", str(profile), "--out", str(full / "plan.json"), status=1).stderr
    assert re.search(sentence(full / "plan.json", full), " ".join(told.split()))


def test_a_blank_project(full: Path) -> None:
    with pytest.raises(OSError, match="No space") as error:
        write_blank(full / "p")
    assert "is full" in describe_error(error.value, name=True)


def test_of_an_error_that_names_no_file_the_caller_may() -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    assert describe_error(error) == "the disk is full: make room there"
    assert re.match(r"the file system \S+ is full", describe_error(error, file=Path("/nowhere/x")))


def test_an_output_that_does_not_fit(full: Path) -> None:
    with (full / "out").open("wb") as out:
        command = [sys.executable, "-m", "jellybean", "schema"]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    told = re.fullmatch(r"the output cannot be written: (.*)\n", done.stderr)
    assert told is not None and re.fullmatch(sentence(full / "out", full), told[1])
