"""Log files of a run have a size, and what reads them finds the last lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jellybean.serving.local.log_files import earlier_log, limit_log, log_lines, open_log
from jellybean.serving.local.processes import describe_end


def test_a_log_is_emptied_in_place_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "logs/gateway.log"
    with open_log(log, append=False) as file:
        for number in range(100):
            file.write(f"line {number}\n".encode())
            file.flush()
            limit_log(log, 200)
            assert log.stat().st_size <= 210
            assert log_lines(log)[-1] == f"line {number}"
    assert log.stat().st_size + earlier_log(log).stat().st_size <= 420
    assert f"{earlier_log(log).read_text()}{log.read_text()}".endswith("line 98\nline 99\n")


def test_of_a_log_that_is_far_too_long_the_end_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(10_000)))
    limit_log(log, 1000)
    assert (log.stat().st_size, earlier_log(log).stat().st_size) == (0, 1000)
    assert log_lines(log)[-1] == "line 9999"
    assert "line 9999" in describe_end("gateway", 1, log)


def test_a_log_that_cannot_be_kept_is_lost_rather_than_without_bound(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_bytes(b"x" * 1000)
    earlier_log(log).mkdir()  # cannot be replaced by a file
    limit_log(log, 100)
    assert log.stat().st_size == 0


def test_a_new_run_begins_its_logs_anew_and_a_restart_does_not(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text("old\n")
    earlier_log(log).write_text("older\n")
    open_log(log, append=True).close()
    assert log_lines(log) == ["older", "old"]
    open_log(log, append=False).close()
    assert log_lines(log) == [] and not earlier_log(log).exists()


def test_no_log_is_written_or_emptied_through_a_link(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "gateway.log"
    victim.write_text("x" * 1000)
    log.symlink_to(victim)
    for append in (True, False):
        with pytest.raises(OSError, match="gateway"):
            open_log(log, append=append)
    limit_log(log, 10)
    log.unlink()
    log.write_text("y" * 1000)
    earlier_log(log).symlink_to(victim)
    earlier_log(log).with_name("gateway.log.1.part").symlink_to(victim)
    limit_log(log, 10)
    assert victim.read_text() == "x" * 1000


def test_children_of_a_process_write_to_its_log_too(tmp_path: Path) -> None:
    log = tmp_path / "edge-1.log"
    with open_log(log, append=False) as file:
        subprocess.run([sys.executable, "-c", "print('a' * 100)"], stdout=file, check=True)
        limit_log(log, 50)
        subprocess.run([sys.executable, "-c", "print('b')"], stdout=file, check=True)
    assert log.read_text() == "b\n" and earlier_log(log).stat().st_size == 50


def test_the_end_of_a_log_is_told_without_its_escape_codes(tmp_path: Path) -> None:
    log = tmp_path / "edge-1.log"
    log.write_text("\x1b[2Jgone\n")
    assert describe_end("edge-1", 1, log).endswith("    \\x1b[2Jgone")
