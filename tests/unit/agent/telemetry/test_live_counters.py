"""Counters that outlive their process."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from jellybean_agent import LiveCounters
from jellybean_agent.errors import CountersError
from jellybean_agent.telemetry import live_counters
from jellybean_agent.telemetry.live_counters import KEY_BYTES

COUNT_FOR_EVER = """
import sys
from pathlib import Path
from jellybean_agent.telemetry.live_counters import LiveCounters

counters = LiveCounters(Path(sys.argv[1]), 3)
row = counters.row(("a", "b"))
told = 0
while True:
    row[0] += 1
    row[2] += 5
    told += 1
    if told % 1000 == 0:
        print(told, flush=True)
"""


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "live"
    command = [sys.executable, "-c", COUNT_FOR_EVER, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for round_ in (1, 2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(20)][-1]
            process.send_signal(signal.SIGKILL)
            told = max([told, *map(int, process.stdout.read().split())])
        with LiveCounters(path, 3) as counters:
            ((key, (first, second, third)),) = counters.readings()
            assert key == ("a", "b")
            assert first >= told * round_ if round_ == 1 else first > told
            assert second == 0
            assert third in [5 * (first - lost) for lost in range(round_ + 1)]  # a kill may come between the two


def test_rows_have_keys_and_stay(tmp_path: Path) -> None:
    with LiveCounters(tmp_path / "live", 2) as counters:
        mark = counters.mark
        counters.row(("client", "ä"))[0] += 3
        counters.row(())[1] += 2**40
    with LiveCounters(tmp_path / "live", 2) as counters:
        assert dict(counters.readings()) == {("client", "ä"): (3, 0), (): (0, 2**40)}
        assert counters.mark == mark
    with LiveCounters(tmp_path / "other", 2) as other:
        assert other.mark != mark


def test_a_file_has_one_process_and_one_layout(tmp_path: Path) -> None:
    with LiveCounters(tmp_path / "live", 2), pytest.raises(CountersError, match="another process counts there"):
        LiveCounters(tmp_path / "live", 2)
    for name, content in (("live", None), ("text", b"not counters"), ("key", None)):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        if name == "key":
            with LiveCounters(path, 3) as counters:
                counters.row(("a",))[0] += 1
            path.write_bytes(path.read_bytes().replace(b'["a"]', b"[\0\0\0\0"))
        with LiveCounters(path, 3) as counters:
            assert list(counters.readings()) == []
        assert len(list(tmp_path.glob(f"{name}.damaged-*"))) == 1
    with pytest.raises(CountersError, match="nothing can be counted there"):
        LiveCounters(tmp_path / "no folder" / "live", 3)


def test_what_has_no_row_is_counted_together(tmp_path: Path) -> None:
    with LiveCounters(tmp_path / "live", 1, most_rows=2 + live_counters._OVERFLOWS) as counters:
        counters.row(("x" * KEY_BYTES,))[0] += 1
        assert dict(counters.readings()) == {(): (1,)}
        for name in "abcd":
            counters.row((name,))[0] += 1
        counters.row(("source", "x"), ("source", ""))[0] += 7
        assert dict(counters.readings()) == {(): (4,), ("a",): (1,), ("source", ""): (7,)}


@pytest.mark.parametrize("damage", [b"x" * 8, bytes(8), struct.pack("<q", 3) + b"{}x", struct.pack("<q", 2) + b"{}"])
def test_a_file_whose_keys_are_damaged_is_moved_away(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "counters"
    with LiveCounters(path, 2) as counters:
        counters.row(("a",))[0] = 5
    content = bytearray(path.read_bytes())
    content[64 : 64 + len(damage)] = damage
    path.write_bytes(content)
    with LiveCounters(path, 2) as counters:
        assert list(counters.readings()) == []
    assert len(list(tmp_path.glob("counters.damaged-*"))) == 1
