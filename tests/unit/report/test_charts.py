"""The page's charts: one scale for costs, traffic as a row, arrows for clipped ratios, axes with texts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jellybean.report import Report, Store, build_report, render_html
from jellybean.report.charts import Chart, Tick, axis, round_up
from jellybean.report.drawing.topology import NARROW, WIDE, Shape, draw
from jellybean.report.views import (
    accuracy_chart,
    cost_charts,
    latency_chart,
    operator_keys,
    ratio_chart,
    worker_charts,
)
from jellybean_solver import Plan
from tests import report_plans as plans

ALL = (plans.vqa, plans.digits, plans.one_worker, plans.large, plans.idle_hub)


def _report(tmp_path: Path, plan: Plan, **changes: Any) -> Report:
    store = Store(tmp_path / "report.db", clock=lambda: 1.0)
    plan_hash = store.add_plan(plans.document(plan), {})
    store.add_prediction(plan_hash, plans.prediction(plan))
    store.add_measurement(plan_hash, plans.measurement(plan, **changes))
    return build_report(store)


def _widths(chart: Chart) -> dict[str, float]:
    return {row.name: sum(part.width for part in row.parts) for row in chart.rows}


@pytest.mark.parametrize("make", ALL)
def test_cost_rows_add_up_to_the_total_on_one_scale(tmp_path: Path, make: Any) -> None:
    report = _report(tmp_path, make())
    breakdown, total = report.breakdown, report.plan.cost.total_usd_per_h
    costs = cost_charts(breakdown, total)
    assert breakdown.traffic.usd_per_h == pytest.approx(report.plan.cost.network_usd_per_h)
    operators, tiers = _widths(costs.operators), _widths(costs.tiers)
    assert sum(operators.values()) == pytest.approx(sum(tiers.values())), "the same total in the same unit"
    for share in breakdown.operators:
        per_percent = share.usd_per_h / operators[share.name]
        assert per_percent * sum(operators.values()) == pytest.approx(total)
    assert all(0 < width <= 100 + 1e-9 for width in (*operators.values(), *tiers.values()))
    assert costs.operators.ticks == costs.tiers.ticks
    assert ("traffic" in operators) == (report.plan.cost.network_usd_per_h > 0)


def test_an_unused_tier_is_folded(tmp_path: Path) -> None:
    report = _report(tmp_path, plans.idle_hub())
    costs = cost_charts(report.breakdown, report.plan.cost.total_usd_per_h)
    assert [row.name for row in costs.tiers.rows] == ["edge", "cloud", "traffic"]
    assert costs.idle == ("hub",)
    assert "No workers in hub." in render_html(report)


@pytest.mark.parametrize("shape", [WIDE, NARROW], ids=["wide", "narrow"])
def test_an_unused_tier_is_one_line_of_the_drawing(tmp_path: Path, shape: Shape) -> None:
    drawing = draw(_report(tmp_path, plans.idle_hub()), shape)
    bands = {band.title: band for band in drawing.bands}
    assert bands["hub"].folded
    assert bands["hub"].note == "not used"
    assert bands["hub"].height < 0.25 * min(bands["edge"].height, bands["cloud"].height)
    assert not bands["edge"].folded


@pytest.mark.parametrize(
    ("ratio", "clipped"), [(2.72, 1), (0.3, -1), (1.0, 0), (2.0, 0), (0.5, 0)], ids=str
)  # fmt: skip
def test_a_clipped_ratio_is_an_arrow(tmp_path: Path, ratio: float, clipped: int) -> None:
    report = _report(tmp_path, plans.digits(), latency_p50_s=0.061 * ratio)
    (row,) = [row for row in ratio_chart(report).rows if row.name == "Latency p50"]
    assert row.dot is not None
    assert row.dot.clipped == clipped
    assert ("beyond the scale" in row.about) == (clipped != 0)
    assert render_html(report).count('class="arrow"') == abs(clipped)


@pytest.mark.parametrize("make", ALL)
def test_every_gauge_has_an_axis_with_texts_that_do_not_touch(tmp_path: Path, make: Any) -> None:
    report = _report(tmp_path, make())
    costs = cost_charts(report.breakdown, report.plan.cost.total_usd_per_h)
    workers = worker_charts(report.workers, report.plan.utilisation, operator_keys(report)).values()
    accuracy, latency = accuracy_chart(report), latency_chart(report)
    assert latency is not None
    charts = [costs.operators, costs.tiers, ratio_chart(report), latency, *workers]
    charts += [accuracy.chart] if accuracy is not None else []
    for chart in charts:
        assert len(chart.ticks) >= 2
        for one, other in itertools.pairwise(chart.ticks):
            assert one.ends[1] < other.ends[0], (one, other)
        assert all(tick.ends[0] >= -1 and tick.ends[1] <= 101 for tick in chart.ticks)
    assert all("limit 80 %" in {tick.text for tick in chart.ticks} for chart in workers if report.plan.utilisation < 1)


def test_ticks_that_would_touch_are_left_out() -> None:
    limit = Tick(50.0, "limit 50 %")
    assert axis([limit], [Tick(0.0, "0"), Tick(55.0, "55 %")]) == (Tick(0.0, "0"), limit)


def test_operators_are_numbered_and_neighbours_differ(tmp_path: Path) -> None:
    keys = list(operator_keys(_report(tmp_path, plans.large())).values())
    assert [key.number for key in keys] == list(range(1, 9))
    assert all(one.shade != other.shade for one, other in itertools.pairwise(keys))


@pytest.mark.parametrize(("value", "end"), [(0.0, 1.0), (0.53, 0.6), (1.0, 1.0), (3.99, 4.0), (12.0, 15.0)])
def test_scales_end_at_round_figures(value: float, end: float) -> None:
    assert round_up(value) == pytest.approx(end)


def test_a_measured_load_above_the_scale_is_an_arrow(tmp_path: Path) -> None:
    plan = plans.digits()
    report = _report(tmp_path, plan, utilisation={"edge-box-1": 1.2})
    charts = worker_charts(report.workers, plan.utilisation, operator_keys(report))
    dots = {row.name: row.dot for chart in charts.values() for row in chart.rows}
    assert dots["edge-box-1"] == replace(dots["edge-box-1"], clipped=1, at=100.0)  # type: ignore[type-var]
    assert dots["edge-box-2"] is None
