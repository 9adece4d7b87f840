"""The error of the closed form that commands state is no smaller than the one that the benchmarks report."""

from __future__ import annotations

import re

from jellybean_solver import CLOSED_FORM_RATIO
from tests.support.paths import DOCS


def test_the_stated_error_is_the_measured_one() -> None:
    pages = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    sections = re.findall(r'<a id="latency_estimate\w*"></a>(.*?)(?=<a id=)', pages, re.DOTALL)
    assert len(sections) == 3
    ratios = [float(cell) for section in sections for cell in re.findall(r"(?<=\| )\d\.\d\d(?= \|)", section)]
    lowest, highest = CLOSED_FORM_RATIO
    assert lowest <= min(ratios)
    assert highest == max(ratios)
