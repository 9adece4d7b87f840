"""Pictures over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.display import Panel, Scale, Steps, save_time_picture
from jellybean.errors import JellyBeanError

HOURS = (0.0, 3600.0, 36_000.0, 86_400.0)


def test_panels_have_their_units_labels_and_limits(tmp_path: Path) -> None:
    panels = (
        Panel("requests / s", [Steps("camera", HOURS, [1.0, 5.0, 2.0], "#2f3f8f")], [(4.0, "planned")]),
        Panel("latency", [Steps("p99", HOURS, [0.01, 9.0, 0.1], "#c2571a")], scale=Scale.DURATIONS),
        Panel("utilisation", [Steps("busiest", HOURS, [0.1, 1.0, 0.4], "#0e7c8b", is_filled=True)], scale=Scale.SHARE),
    )
    path = tmp_path / "day.svg"
    save_time_picture(path, "a day", panels, origin_s=7200.0, bad=[(0.0, 3600.0), (1800.0, 36_000.0)])
    text = path.read_text(encoding="utf-8")
    for words in ("a day", "requests / s", "camera", "planned", "10 s", "100 ms", "50 %", "busiest"):
        assert f">{words}</text>" in text
    assert ">time of the trace (hours)</text>" in text
    assert text.count("opacity: 0.1") == len(panels), "spans that overlap are one"


def test_the_file_has_a_format_of_pictures(tmp_path: Path) -> None:
    with pytest.raises(JellyBeanError, match="the file name must end in"):
        save_time_picture(tmp_path / "day.txt", "a day", [Panel("rate", [Steps("one", HOURS, [1.0, 2.0, 3.0], "k")])])
