"""Drawings of timelines: numbers are drawn only where they fit."""

from __future__ import annotations

import re
from pathlib import Path

from jellybean.pipeline import draw_timeline, save_timeline
from jellybean_solver.pipeline import ScheduleCosts, make_schedule, simulate

SMALL = re.compile(r'<text style="font-size: ([0-9.]+)px[^>]*>(\d+)</text>')


def labels(devices: int, microbatches: int, costs: ScheduleCosts, path: Path) -> list[str]:
    save_timeline(simulate(make_schedule("gpipe", devices, microbatches), costs), path)
    return [
        number for size, number in SMALL.findall(path.read_text(encoding="utf-8")) if float(size) < 8
    ]  # the axis has 9


def test_numbers_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    picture = tmp_path / "one.svg"
    assert sorted(labels(2, 3, ScheduleCosts(), picture)) == sorted("012" * 4)
    assert labels(4, 150, ScheduleCosts(), picture) == []  # 459 seconds on 726 points
    long_backwards = ScheduleCosts(1.0, 60.0)
    assert sorted(labels(2, 11, long_backwards, picture), key=int) == [str(m) for m in range(11) for _ in range(2)]


def test_a_narrow_terminal_gets_letters_for_numbers_and_no_longer_lines() -> None:
    timeline = simulate(make_schedule("1f1b", 2, 3), ScheduleCosts())
    rows = draw_timeline(timeline, columns=40).plain.splitlines()
    assert rows[:2] == ["device 0 0 1 · · 0── 2 1── · 2── ", "device 1 · 0 0── 1 1── 2 2── · · "]
    rows = draw_timeline(timeline, columns=30).plain.splitlines()
    assert rows[:2] == ["device 0 FF··B─FB─·B─", "device 1 ·FB─FB─FB─··"]
    rows = draw_timeline(timeline, columns=20).plain.splitlines()
    assert rows[:2] == ["device 0 FF··B─F ...", "device 1 ·FB─FB─ ..."]


def test_the_axis_is_in_the_unit_of_its_times(tmp_path: Path) -> None:
    for scale, tick in ((1.0, "10 s"), (1e-3, "10 ms"), (1e-6, "10 µs")):
        costs = ScheduleCosts((scale,) * 2, (2 * scale,) * 2)
        save_timeline(simulate(make_schedule("gpipe", 2, 4), costs), tmp_path / "t.svg")
        assert f">{tick}</text>" in (tmp_path / "t.svg").read_text(encoding="utf-8")
