"""Whatever the solver plans, the page can show."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import assume, given, settings

from jellybean.report import Report, Store, build_report, render_html
from jellybean.report.drawing.topology import NARROW, WIDE, draw
from jellybean_solver import Problem, solve, to_document
from tests.strategies import problems
from tests.support.examples import examples


def _report(problem: Problem) -> Report:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "report.db")
        store.add_plan(to_document(plan))
        return build_report(store)


@settings(max_examples=examples(40))
@given(problem=problems())
def test_any_plan_is_drawn_without_overlap(problem: Problem) -> None:
    report = _report(problem)
    for shape in (WIDE, NARROW):
        drawing = draw(report, shape)
        for index, one in enumerate(drawing.boxes):
            assert one.x >= 0
            assert one.x + one.width <= drawing.shape.width
            for other in drawing.boxes[index + 1 :]:
                beside = one.x + one.width <= other.x or other.x + other.width <= one.x
                assert beside or one.y >= other.y + other.height or other.y >= one.y + one.height
        assert len(drawing.curves) == len(report.breakdown.flows)
    html = render_html(report)
    assert all(worker.name in html for worker in report.workers)
