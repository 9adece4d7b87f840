"""The error of the closed form that commands state is the one that benchmarks and limits report."""

from __future__ import annotations

import re

from jellybean_solver import CLOSED_FORM_RATIO
from tests.support.paths import DOCS


def test_the_stated_error_is_the_measured_one() -> None:
    pages = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    sections = re.findall(r'<a id="latency_estimate\w*"></a>(.*?)(?=<a id=)', pages, re.DOTALL)
    assert len(sections) == 3
    ratios = [float(cell) for section in sections for cell in re.findall(r"(?<=\| )\d\.\d\d(?= \|)", section)]
    (below,) = re.findall(r"it was seen (\d+) % below", (DOCS / "limits.md").read_text(encoding="utf-8"))
    assert (min(*ratios, 1 - int(below) / 100), max(ratios)) == CLOSED_FORM_RATIO
