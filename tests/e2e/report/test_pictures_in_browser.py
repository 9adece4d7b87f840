"""Pictures in a real browser: no text lies on a line of a curve, a limit or another text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jellybean.display import STYLE, save_figure
from jellybean.frontier import save_plot
from jellybean.frontier.find import Current
from jellybean.pipeline import LinearComparison, compare_ways, save_comparison
from jellybean_solver import Slo
from jellybean_solver.pipeline import LinearLayer, Link
from tests.support.browser import Page
from tests.unit.frontier.test_view import found, many

# Strokes are those of lines and line collections but for grids and ticks, which lie under every text.
_CROSSED = """(() => {
  const strokes = [...document.querySelectorAll('g[id^="line2d"] path, g[id^="LineCollection"] path')]
    .filter(path => !path.closest('g[id^="matplotlib.axis"], g[id^="legend"], defs'));
  const lines = strokes.map(path => {
    const matrix = path.getScreenCTM(), length = path.getTotalLength();
    const steps = Array.from({length: Math.ceil(length / 2) + 1}, (_, i) => 2 * i);
    return steps.map(at => path.getPointAtLength(at).matrixTransform(matrix));
  });
  const texts = [...document.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  const inside = (box, p) => p.x > box.left + 1 && p.x < box.right - 1 && p.y > box.top + 2 && p.y < box.bottom - 2;
  const crossed = texts.filter(([_, box]) => lines.some(line => line.some(p => inside(box, p)))).map(([text]) => text);
  const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  const after = i => texts.slice(i + 1);
  const met = texts.flatMap(([one, a], i) => after(i).filter(([_, b]) => touch(a, b)).map(([two]) => [one, two]));
  return {lines: lines.length, crossed, met};
})()"""


def _frontier(path: Path, *, levels: int, slo: Slo, scales: tuple[float, ...] = (), narrow: bool = False) -> None:
    save_plot(found(many(levels, slo), scales=scales, current=Current(2.0, 2.4, 0.4)), path, narrow=narrow)


def _near_targets(path: Path) -> None:
    _frontier(path, levels=5, slo=Slo(accuracy=4.0, budget_usd_per_h=4.6), scales=(0.25, 0.5, 0.75, 1.0, 1.25))


def _on_a_phone(path: Path) -> None:
    slo = Slo(accuracy=4.0, budget_usd_per_h=4.6)
    _frontier(path, levels=5, slo=slo, scales=(0.25, 0.5, 0.75, 1.0, 1.25), narrow=True)


def _many_points(path: Path) -> None:
    _frontier(path, levels=16, slo=Slo(accuracy=9.5, budget_usd_per_h=10.0))


def _collectives(path: Path) -> None:
    save_comparison(compare_ways(4, 400e6, Link(1.25e9)), path)


def _linear(path: Path) -> None:
    LinearComparison(LinearLayer(1024, 4096), 8, 512).save_plot(path)


@pytest.mark.parametrize("draw", [_near_targets, _on_a_phone, _many_points, _collectives, _linear])
def test_no_text_lies_on_a_line(page: Page, tmp_path: Path, draw: Callable[[Path], None]) -> None:
    path = tmp_path / "picture.svg"
    draw(path)
    page.resize(1280)
    page.open(path)
    seen: dict[str, Any] = page.evaluate(_CROSSED)
    assert seen.pop("lines") >= 3
    assert seen == {"crossed": [], "met": []}


def test_the_check_would_notice(page: Page, tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    axes.axhline(0.5)
    axes.text(0.2, 0.5, "on a line", va="center")
    axes.text(0.2, 0.8, "first")
    axes.text(0.2, 0.8, "second")
    with matplotlib.rc_context(STYLE):
        save_figure(figure, tmp_path / "picture.svg")
    page.open(tmp_path / "picture.svg")
    assert page.evaluate(_CROSSED) == {"lines": 2, "crossed": ["on a line"], "met": [["first", "second"]]}
