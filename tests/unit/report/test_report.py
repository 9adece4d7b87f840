from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jellybean.report import Report, Store, build_report, render_html
from jellybean.report.breakdown import break_down
from jellybean.report.comparison import ComparisonVerdict, SloState
from jellybean.report.headline import HeadlineLevel
from jellybean.report.history import history
from jellybean_solver import JellyBeanError, Plan
from tests import report_plans as plans

ALL = (plans.vqa, plans.digits, plans.one_worker, plans.large)


def _report(tmp_path: Path, plan: Plan, *records: dict[str, Any], prediction: dict[str, Any] | None = None) -> Report:
    store = Store.of(tmp_path / plan.name)
    plan_hash = store.add_plan(plans.document(plan))
    store.add_prediction(plan_hash, prediction or plans.prediction(plan))
    for record in records:
        store.add_measurement(plan_hash, record)
    return build_report(store)


@pytest.mark.parametrize("make", ALL)
def test_breakdown_adds_up_to_the_plans_cost(make: Any) -> None:
    plan = make()
    found = break_down(plan)
    for shares in (found.operators, found.tiers):
        assert sum(share.usd_per_h for share in shares) == pytest.approx(plan.cost.compute_usd_per_h)
    assert found.traffic.usd_per_h == pytest.approx(plan.cost.network_usd_per_h)
    assert sum(link.cost_usd_per_h for link in found.links) == pytest.approx(plan.cost.network_usd_per_h)
    assert all(flow.cost_usd_per_h == 0 for flow in found.flows if not flow.crosses)


def test_traffic_of_a_fan_out_counts_every_child() -> None:
    flows = {(flow.upstream, flow.downstream): flow for flow in break_down(plans.digits()).flows}
    assert flows["find", "strokes"].messages_per_s == pytest.approx(48)
    assert flows["find", "strokes"].bytes_per_s == pytest.approx(48 * 256)
    assert flows["find", "strokes"].cost_usd_per_h == pytest.approx(48 * 256 * 3600 / 2**30 * 0.1)
    assert flows["read", "number"].messages_per_s == pytest.approx(48)
    assert not flows["read", "number"].crosses


def test_as_predicted(tmp_path: Path) -> None:
    plan = plans.digits()
    report = _report(tmp_path, plan, plans.measurement(plan), {"highest_rate_per_s": 21.0})
    assert report.headline.level is HeadlineLevel.GOOD
    assert {item.verdict for item in report.comparisons} == {ComparisonVerdict.WITHIN}
    p50 = report.comparison("latency_p50_s")
    assert (p50.predicted, p50.measured, p50.ratio) == (0.061, 0.066, pytest.approx(0.066 / 0.061))
    assert report.comparison("highest_rate_per_s").measured == 21.0
    assert report.advice == ()
    assert report.headline.reasons == ("7 of 7 figures and 3 of 3 utilisations within tolerance of the prediction",)
    assert {slo.metric: slo.measured_state for slo in report.slos} == dict.fromkeys(
        ("accuracy", "latency_p99_s", "cost_usd_per_h"), SloState.MET
    )


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(90.0, ComparisonVerdict.WITHIN), (23.0, ComparisonVerdict.WITHIN), (12.0, ComparisonVerdict.LOWER)],
)
def test_a_highest_rate_at_which_the_search_ended_is_at_least_that(
    tmp_path: Path, measured: float, verdict: ComparisonVerdict
) -> None:
    plan = plans.digits()
    prediction = plans.prediction(plan, highest_rate_is_limit=True)
    report = _report(tmp_path, plan, {"highest_rate_per_s": measured}, prediction=prediction)
    found = report.comparison("highest_rate_per_s")
    assert (found.predicted_at_least, found.verdict) == (True, verdict)
    assert found.shown_prediction.startswith("at least 22.8")
    (compared,) = (one for one in report.to_json()["comparisons"] if one["metric"] == "highest_rate_per_s")
    assert compared["predicted_at_least"]
    assert not any(one.predicted_at_least for one in report.comparisons if one is not found)
    assert "at least 22.8" in render_html(report)
    entries = history(Store.of(tmp_path / plan.name).history(), ())
    assert any("highest rate at least 22.8" in entry.text for entry in entries)


@pytest.mark.parametrize(
    ("changes", "metric", "verdict"),
    [
        ({"latency_p50_s": 0.061 * 1.26}, "latency_p50_s", ComparisonVerdict.HIGHER),
        ({"latency_p50_s": 0.061 * 1.25}, "latency_p50_s", ComparisonVerdict.WITHIN),
        ({"accuracy": 93.1 - 1.01}, "accuracy", ComparisonVerdict.LOWER),
        ({"accuracy": 93.1 - 1.0}, "accuracy", ComparisonVerdict.WITHIN),
        ({"throughput_per_s": 10.0}, "throughput_per_s", ComparisonVerdict.LOWER),
        ({"latency_p90_s": None}, "latency_p90_s", ComparisonVerdict.UNKNOWN),
    ],
)
def test_verdicts_at_their_tolerances(
    tmp_path: Path, changes: dict[str, Any], metric: str, verdict: ComparisonVerdict
) -> None:
    plan = plans.digits()
    report = _report(tmp_path, plan, plans.measurement(plan, **changes))
    assert report.comparison(metric).verdict is verdict
    assert report.headline.level is (
        HeadlineLevel.WARNING if verdict in {ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER} else HeadlineLevel.GOOD
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy": 89.0}, "Accuracy 89.00 measured, target 90.00"),
        ({"latency_p99_s": 0.9}, "Latency p99 900 ms measured, target 800 ms"),
        ({"errors": 3, "completed": 357}, "3 of 360 requests failed"),
        ({"sustained": False, "verdict": "overload: 300 of 360 answered"}, "overload: 300 of 360 answered"),
    ],
)
def test_broken_targets_and_failures_come_first(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    plan = plans.digits()
    report = _report(tmp_path, plan, plans.measurement(plan, **changes))
    assert report.headline.level is HeadlineLevel.BAD
    assert reason in report.headline.reasons


def test_an_accuracy_within_its_sampling_error_misses_no_target(tmp_path: Path) -> None:
    """`bench` does not call it a miss either; beyond the error it is one."""
    plan = plans.digits()
    target = plan.slo.accuracy
    assert target is not None
    unsure = _report(tmp_path / "few", plan, plans.measurement(plan, accuracy=target - 0.1, accuracy_margin=6.6))
    assert unsure.headline.level is not HeadlineLevel.BAD
    (reason,) = [reason for reason in unsure.headline.reasons if "too few requests to tell" in reason]
    assert "± 6.6" in reason
    assert reason.endswith(f"(measure longer: `jellybean bench {tmp_path}/few/{plan.name} --duration 60`)")
    missed = _report(tmp_path / "many", plan, plans.measurement(plan, accuracy=target - 0.1, accuracy_margin=0.05))
    assert missed.headline.level is HeadlineLevel.BAD


def test_a_latency_of_few_requests_deviates_from_no_prediction_within_what_its_arrivals_give(tmp_path: Path) -> None:
    plan = plans.digits()
    ranges = {"latency_p50_s": [0.05, 0.2], "latency_p90_s": [0.1, 0.11]}
    slow = plans.measurement(plan, latency_p50_s=0.15)
    predicted = plans.prediction(plan)["latency_p50_s"]
    assert 1.25 * predicted < 0.15
    few, many = (
        _report(tmp_path / name, plan, slow | more).comparison("latency_p50_s")
        for name, more in (("few", {"ranges": ranges}), ("many", {}))
    )
    assert (few.verdict, few.sampled_between) == (ComparisonVerdict.WITHIN, (0.05, 0.2))
    assert few.shown_tolerance == "± 25 % or 50.0 ms to 200 ms"
    assert (many.verdict, many.shown_tolerance) == (ComparisonVerdict.HIGHER, "± 25 %")
    beyond = _report(tmp_path / "beyond", plan, plans.measurement(plan, latency_p50_s=0.3, ranges=ranges))
    assert beyond.comparison("latency_p50_s").verdict is ComparisonVerdict.HIGHER


def test_a_quantile_of_too_few_requests_is_not_judged(tmp_path: Path) -> None:
    plan = plans.digits()
    few, some, enough = (
        _report(tmp_path / f"{count}", plan, plans.measurement(plan, completed=count, latency_p99_s=0.79, **slow))
        for count, slow in ((8, {"latency_p90_s": 8.0}), (99, {}), (100, {}))
    )
    assert few.comparison("latency_p90_s").unknown_reason == "too few requests, 10 needed"
    assert few.comparison("latency_p99_s").unknown_reason == "too few requests, 100 needed"
    assert few.comparison("latency_p50_s").verdict is ComparisonVerdict.WITHIN
    assert "Latency p90: too few requests to judge it (8 requests, 10 needed)" in few.headline.reasons
    assert some.comparison("latency_p90_s").verdict is ComparisonVerdict.WITHIN
    assert some.comparison("latency_p99_s").requests_needed == 100
    assert enough.comparison("latency_p99_s").verdict is ComparisonVerdict.HIGHER


def test_a_minute_with_few_arrivals_has_the_throughput_of_these(tmp_path: Path) -> None:
    plan = plans.digits()
    predicted = plans.prediction(plan)["throughput_per_s"]
    ranges = {"throughput_per_s": [0.85 * predicted, 0.86 * predicted]}
    found = {}
    for name, share in (("as", 0.84), ("below", 0.75)):
        measured = plans.measurement(plan, throughput_per_s=share * predicted, ranges=ranges)
        found[name] = _report(tmp_path / name, plan, measured).comparison("throughput_per_s").verdict
    assert found == {"as": ComparisonVerdict.WITHIN, "below": ComparisonVerdict.LOWER}


def test_an_accuracy_of_few_inputs_deviates_from_no_prediction_within_its_sampling_error(tmp_path: Path) -> None:
    plan = plans.digits()
    few, many = (
        [plans.measurement(plan, accuracy=plan.accuracy - away, **more) for away in (0.0, 3.5)]
        for more in ({"accuracy_margin": 15.3}, {})
    )
    unsure, surely = _report(tmp_path / "few", plan, *few), _report(tmp_path / "many", plan, *many)
    comparison = unsure.comparison("accuracy")
    assert (comparison.verdict, comparison.tolerance) == (ComparisonVerdict.WITHIN, 15.3)
    assert comparison.shown_tolerance == "± 15.3 points, sampling error"
    assert surely.comparison("accuracy").verdict is ComparisonVerdict.LOWER
    assert surely.comparison("accuracy").shown_tolerance == "± 1 point"
    drifts = [{item.metric: item.verdict for item in report.drift}["accuracy"] for report in (unsure, surely)]
    assert drifts == [ComparisonVerdict.WITHIN, ComparisonVerdict.LOWER]


def test_not_measured_says_how_to_measure(tmp_path: Path) -> None:
    report = _report(tmp_path, plans.digits())
    assert report.headline.level is HeadlineLevel.OPEN
    assert not report.measured
    (line,) = [line for line in report.advice if line.startswith(f"jellybean bench {tmp_path / 'digits'}  ")]
    assert f"(first jellybean up {tmp_path / 'digits'} --detach)" in line
    assert any("--saturate" in line for line in report.advice)


def test_variants_without_models_are_not_sent_to_bench(tmp_path: Path) -> None:
    store = Store.of(tmp_path)
    store.add_plan(plans.document(plans.vqa()))
    advice = build_report(store).advice
    assert any("jellybean simulate" in line for line in advice)
    assert not any("jellybean bench" in line for line in advice)


def test_nothing_to_report_says_to_plan(tmp_path: Path) -> None:
    store = Store.of(tmp_path)
    with pytest.raises(JellyBeanError, match="run: jellybean plan"):
        build_report(store)
    store.add_plan(plans.document(plans.vqa()))
    with pytest.raises(JellyBeanError, match=r"no plan 1234.*\n.*  0 measurements$"):
        build_report(store, "1234")
    store.add_measurement(store.add_plan(plans.document(plans.vqa())), plans.measurement(plans.vqa()))
    with pytest.raises(JellyBeanError, match=r"  1 measurement$"):
        build_report(store, "1234")


def test_the_command_that_predicts_has_the_options_of_the_plan(tmp_path: Path) -> None:
    plan, store = replace(plans.digits(), overrides=("slo.accuracy=90",)), Store.of(tmp_path)
    store.add_measurement(store.add_plan(plans.document(plan)), plans.measurement(plan))
    command = f"jellybean simulate {tmp_path} --set slo.accuracy=90"
    report = build_report(store)
    assert f"(run `{command}`)" in report.headline.reasons[-1]
    assert any(line.startswith(f"{command}  ") for line in report.advice)


def test_figures_that_were_not_predicted_or_not_measured_are_named(tmp_path: Path) -> None:
    plan, store = plans.digits(), Store.of(tmp_path)
    stored_before_p50 = {"latency_p99": {"": {"p99_s": 0.2, "low_s": 0.19, "high_s": 0.22}}}
    plan_hash = store.add_plan(plans.document(plan), stored_before_p50)
    store.add_measurement(plan_hash, plans.measurement(plan, utilisation={}))
    unpredicted = f"Latency p50, Latency p90: not predicted (run `jellybean simulate {tmp_path}`)"
    assert build_report(store).headline.level is HeadlineLevel.GOOD
    assert build_report(store).headline.reasons == (
        "4 of 6 figures within tolerance of the prediction", unpredicted,
    )  # fmt: skip
    store.add_measurement(plan_hash, plans.measurement(plan, utilisation={}, accuracy=None, throughput_per_s=11.0))
    assert build_report(store).headline.level is HeadlineLevel.WARNING
    assert build_report(store).headline.reasons == (
        "Throughput 11.0/s measured, 12.0/s predicted", unpredicted, "Accuracy: not measured",
    )  # fmt: skip
    store.add_prediction(plan_hash, plans.prediction(plan))
    assert build_report(store).headline.reasons[1:] == ("Accuracy, Highest sustained rate: not measured",)


def test_a_measured_sustained_rate_is_a_measurement(tmp_path: Path) -> None:
    headline = _report(tmp_path, plans.digits(), {"highest_rate_per_s": 21.0}).headline
    assert (headline.level, headline.title) == (HeadlineLevel.OPEN, "Measured in part")
    assert headline.reasons == (
        "1 of 7 figures within tolerance of the prediction",
        "Cost, Accuracy, Throughput, Latency p50, Latency p90, Latency p99: not measured",
    )
    lower = _report(tmp_path / "lower", plans.digits(), {"highest_rate_per_s": 15.0}).headline
    assert (lower.level, lower.title) == (HeadlineLevel.WARNING, "Not as predicted")
    scaled = _report(tmp_path / "scaled", plans.digits(), plans.measurement(plans.digits(), rate_per_s=6.0)).headline
    assert (scaled.level, scaled.title) == (HeadlineLevel.OPEN, "Not measured at the planned rate")


def test_a_sustained_rate_without_a_prediction_is_within_no_tolerance(tmp_path: Path) -> None:
    store = Store.of(tmp_path)
    store.add_measurement(store.add_plan(plans.document(plans.digits())), {"highest_rate_per_s": 21.0})
    headline = build_report(store).headline
    assert (headline.level, headline.title) == (HeadlineLevel.OPEN, "Measured in part")
    assert headline.reasons[0] == f"Highest sustained rate: not predicted (run `jellybean simulate {tmp_path}`)"
    assert not any(reason.endswith(".") for reason in headline.reasons)


def test_drift_is_the_newest_against_the_median_of_the_earlier(tmp_path: Path) -> None:
    plan = plans.digits()
    p50s = (0.060, 0.062, 0.064, 0.090)
    report = _report(tmp_path, plan, *(plans.measurement(plan, latency_p50_s=p50) for p50 in p50s))
    drift = {item.metric: item for item in report.drift}
    assert (drift["latency_p50_s"].earlier, drift["latency_p50_s"].latest) == (0.062, 0.090)
    assert drift["latency_p50_s"].verdict is ComparisonVerdict.HIGHER
    assert drift["accuracy"].verdict is ComparisonVerdict.WITHIN
    assert _report(tmp_path / "one", plan, plans.measurement(plan)).drift == ()


def test_a_bench_at_another_rate_is_not_taken_for_the_workflows_own(tmp_path: Path) -> None:
    plan = plans.digits()
    overload = plans.measurement(plan, rate_per_s=15.6, latency_p50_s=9.0, sustained=False)
    report = _report(tmp_path, plan, plans.measurement(plan, rate_per_s=12.0), overload)
    assert report.comparison("latency_p50_s").measured == 0.066
    assert [run.kind for run in report.runs] == ["bench", "scaled"]


def test_the_p99_that_plan_simulated_stands_beside_its_target_until_simulate_says_more(tmp_path: Path) -> None:
    plan, store = plans.digits(), Store.of(tmp_path)
    stated = {"p50_s": 0.06, "p90_s": 0.1, "p99_s": 0.2, "low_s": 0.19, "high_s": 0.22}
    plan_hash = store.add_plan(plans.document(plan), {"latency_p99": {"": stated}})
    found = next(slo for slo in build_report(store).slos if slo.metric == "latency_p99_s")
    assert (found.predicted, found.predicted_state) == (0.2, SloState.MET)
    assert build_report(store).comparison("latency_p99_s").shown_prediction == "200 ms (190 to 220)"
    assert [build_report(store).comparison(f"latency_{part}_s").predicted for part in ("p50", "p90")] == [0.06, 0.1]
    store.add_prediction(plan_hash, plans.prediction(plan))
    assert build_report(store).comparison("latency_p99_s").predicted == plans.prediction(plan)["latency_p99_s"]


def test_a_budget_that_the_plan_breaks_shows_without_a_measurement(tmp_path: Path) -> None:
    plan = plans.digits()
    report = _report(tmp_path, replace(plan, slo=replace(plan.slo, budget_usd_per_h=0.5)))
    assert report.headline.level is HeadlineLevel.BAD
    assert report.headline.reasons == ("Cost 0.72 predicted, target 0.50",)


JSON_SHAPE = {
    "kind": "Report",
    "version": 5,
    "keys": [
        "accuracy", "advice", "baselines", "caveats", "certificate", "comparisons", "cost_by", "cost_usd_per_h",
        "drift", "headline", "kind", "name", "placements", "plan_hash", "planned_at", "planning", "project", "runs",
        "selection", "slos", "version", "workers",
    ],
    "cost_usd_per_h": ["compute", "network", "total"],
    "certificate": ["bound", "gap", "objective", "objective_of", "termination"],
    "headline": ["level", "reasons", "title"],
    "cost_by": ["flows", "links", "operators", "tiers", "traffic"],
    "comparisons": [
        "difference", "measured", "metric", "predicted", "predicted_at_least", "predicted_between", "ratio",
        "requests_needed",
        "sampled_between", "tolerance", "verdict",
    ],
    "slos": ["measured", "measured_state", "metric", "predicted", "predicted_state", "target"],
    "placements": ["batch", "count", "load", "operator", "pool", "rate_per_s", "sites", "tier", "variant"],
    "workers": [
        "device", "expected", "load", "loads", "measured", "name", "pool", "price_usd_per_h", "reasons", "simulated",
        "sites", "tier", "verdict",
    ],
    "runs": ["at", "caveats", "figures", "kind", "machine", "outcomes"],
}  # fmt: skip


@pytest.mark.parametrize("make", ALL)
def test_json_counts_every_cost_once(tmp_path: Path, make: Any) -> None:
    """All USD of `cost_by`, whatever they are named, add up to the plan's total, by operator and by tier."""
    found = _report(tmp_path, make()).to_json()
    for rows in (found["cost_by"]["operators"], found["cost_by"]["tiers"]):
        costs = [
            value for row in (*rows, found["cost_by"]["traffic"]) for key, value in row.items() if key != "name"
        ]  # fmt: skip
        assert sum(costs) == pytest.approx(found["cost_usd_per_h"]["total"])


def test_json_keeps_its_shape(tmp_path: Path) -> None:
    """Whoever reads it by name may go on doing so: a name that goes needs a new REPORT_VERSION."""
    plan = plans.digits()
    found = json.loads(json.dumps(_report(tmp_path, plan, plans.measurement(plan)).to_json(), allow_nan=False))
    shape: dict[str, Any] = {"kind": found["kind"], "version": found["version"], "keys": sorted(found)}
    for key in list(JSON_SHAPE)[3:]:
        value = found[key]
        shape[key] = sorted(value[0] if isinstance(value, list) else value)
    assert shape == JSON_SHAPE
    assert [item["metric"] for item in found["comparisons"]] == [
        "cost_usd_per_h", "accuracy", "throughput_per_s", "highest_rate_per_s", "latency_p50_s", "latency_p90_s",
        "latency_p99_s",
    ]  # fmt: skip
    assert found["comparisons"][4] | {"ratio": None, "difference": None} == {
        "metric": "latency_p50_s", "predicted": 0.061, "measured": 0.066, "difference": None, "ratio": None,
        "tolerance": 0.25, "verdict": "within", "predicted_between": None, "sampled_between": None,
        "predicted_at_least": False,
        "requests_needed": None,
    }  # fmt: skip


def test_a_plan_that_was_not_measured_names_the_one_that_was(tmp_path: Path) -> None:
    store = Store.of(tmp_path / "digits")
    measured = store.add_plan(plans.document(plans.digits()))
    store.add_measurement(measured, plans.measurement(plans.digits()))
    faster = replace(plans.digits(), sources=tuple(replace(s, rate_per_s=13.0) for s in plans.digits().sources))
    store.add_plan(plans.document(faster))
    (line,) = [line for line in build_report(store).advice if "--plan" in line]
    assert line.startswith(f"jellybean report {store.project} --plan {measured[:12]}  shows the plan that was measured")
    assert not [line for line in build_report(store, measured).advice if "--plan" in line]
    assert [(plan.plan_hash == measured, plan.measurements) for plan in store.plans()] == [(False, 0), (True, 1)]
