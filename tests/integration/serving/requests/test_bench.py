"""Load, counts and verdicts against a real run."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from jellybean.bench import measure_hop
from jellybean.bench.heldout import HeldOut
from jellybean.bench.load_settings import LoadSettings
from jellybean.bench.target import Target
from jellybean.cli.serving.measure import bench_table
from jellybean.serving import NotRunningError, OutcomeKind, ServingError
from jellybean.serving.local import launcher, replace_plan
from jellybean_solver import Arrivals, Link
from tests.support.tiny_models import chain, make_plan, scale

pytestmark = [pytest.mark.slow, pytest.mark.alone]

INPUTS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("bench")
    running = launcher.up(root, chain(root, links=[Link("edge", "cloud", 1e6, None, 0.001)]))
    yield root
    running.down()


def test_counts_accuracy_cost_and_utilisation(directory: Path) -> None:
    labels = 6 * INPUTS
    labels[:5] += 1.0  # half of the answers are wrong
    data = HeldOut({"x": INPUTS}, Arrivals.PERIODIC, labels)
    told: list[str] = []
    target = Target.of(directory, data)
    target.slow_latency_s = 10.0  # for as long this machine may stand still at the end
    result = target.measure(20.0, LoadSettings(2.0, 0.5), lambda done, total, label: told.append(label))
    assert (result.offered, result.completed, result.failed) == (40, 40, 0)
    assert result.accuracy == 50.0
    assert result.sustained
    assert result.latency_p50_s is not None
    assert result.latency_p99_s is not None
    assert 0.001 < result.latency_p50_s <= result.latency_p99_s
    assert set(result.utilisation) == {"edge-1", "cloud-1"}
    assert all(0 < busy < 1 for busy in result.utilisation.values())
    assert result.cost_usd_per_h is not None
    network = 20.0 * 16 * 3600 / 2**30 * 1e6  # 20 messages of 16 bytes per second over the link
    assert 0.6 * network < result.cost_usd_per_h - 0.2 < 1.25 * network  # less if the window ended late
    assert {"warm-up", "offering load"} <= set(told)
    record = result.to_dict()
    assert record["errors"] == 0
    assert (record["warmup_s"], record["uncounted"]) == (0.5, 10)
    assert record["throughput_per_s"] == record["answered_in_window"] / 2.0
    assert record["plan"] == Target.of(directory, data).plan_hash


def test_the_warm_up_is_as_long_as_the_slowest_requests_take(directory: Path) -> None:
    target = Target.of(directory, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, None))
    assert target.slow_latency_s > 0.0
    assert target.warm_up_s == max(2.0, target.slow_latency_s)
    target.slow_latency_s = 7.5
    assert target.warm_up_s == 7.5


def test_the_accuracy_is_of_all_held_out_rows(directory: Path) -> None:
    labels = 6 * INPUTS
    labels[:7] += 1.0  # 3 of 10 are right: no 6 rows show that
    target = Target.of(directory, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, labels))
    told: list[str] = []
    every_row = LoadSettings(0.3, 0.0, all_rows=True)
    whole = target.measure(20.0, every_row, lambda done, total, label: told.append(label))
    assert (whole.offered, whole.uncounted) == (6, 4)
    assert whole.accuracy == pytest.approx(30.0)
    assert "the other held-out inputs, for the accuracy" in told
    assert target.measure(20.0, LoadSettings(0.3, 0.0)).accuracy != pytest.approx(30.0)
    short = target.measure(20.0, LoadSettings(0.1, 0.0, all_rows=True))  # 8 rows do not fit into 0.1 s
    assert short.accuracy in (0.0, 50.0, 100.0)


def test_failures_are_counted_by_reason(directory: Path) -> None:
    data = HeldOut({"x": np.ones((3, 5), np.float32)}, Arrivals.PERIODIC)
    result = Target.of(directory, data).measure(20.0, LoadSettings(1.0, 0.0))
    assert (result.offered, result.completed, result.failed) == (20, 0, 20)
    assert not result.sustained
    assert result.verdict.startswith("failures")
    assert "INVALID_ARGUMENT" in next(iter(result.reasons))
    assert result.outcomes == dict.fromkeys(OutcomeKind, 0) | {"client_error": 20}
    assert result.latency_p50_s is None
    assert "latency_p50_s" not in result.to_dict()


def test_labels_of_a_target_and_rates_are_checked(directory: Path) -> None:
    target = Target.of(directory, HeldOut({"x": INPUTS}))
    with pytest.raises(ServingError, match="above 0"):
        target.measure(0.0)
    with pytest.raises(ServingError, match=r"other sources \(x\) than the documents \(y\): plan and apply"):
        Target.of(directory, HeldOut({"y": INPUTS}))


@pytest.mark.slow
def test_the_accuracy_is_of_the_answer_that_labels_are_for(tmp_path: Path, start) -> None:
    operators = {name: (["x"], scale(tmp_path / f"models/{name}.onnx", by)) for name, by in (("a", 2.0), ("b", 3.0))}
    start(tmp_path, make_plan(tmp_path, operators, [(1.0, dict.fromkeys("ab", "edge-1"))], sources={"x": "edge"}))

    def target(labels_of: str | None) -> Target:
        return Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, 3 * INPUTS, labels_of=labels_of))

    for labels_of, percent in (("b", 100.0), ("a", 0.0)):
        assert target(labels_of).measure(20.0, LoadSettings(0.5, 0.0)).accuracy == pytest.approx(percent)
    with pytest.raises(ServingError, match="labels are for one answer, but a, b answer: write `labels_of:`"):
        target(None)
    with pytest.raises(ServingError, match="answers of c, but the plan that is served answers with a, b: plan and"):
        target("c")


@pytest.mark.slow
def test_a_slow_worker_is_found_out(tmp_path: Path, start) -> None:
    """A device of 40 ms a run: 200/s is overload, by the device and not by this machine."""
    start(tmp_path, chain(tmp_path, slow_s=0.04, links=[Link("edge", "cloud", 0.0, None, 0.001)]))
    target = Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC))
    target.slow_latency_s = 1.0  # answers after the window, of which there are some on a busy machine too
    overloaded = target.measure(200.0, LoadSettings(1.5, 0.0, settle_s=0.0))
    assert not overloaded.sustained
    assert "overload" in overloaded.verdict or "RESOURCE_EXHAUSTED" in overloaded.verdict
    assert max(overloaded.utilisation.values()) > 0.5
    assert overloaded.answered_in_time < 0.98 * overloaded.offered
    counts = overloaded.outcomes
    assert sum(counts.values()) == overloaded.offered
    assert counts["answered"] == overloaded.completed
    assert counts["cancelled"] + counts["shed"] == overloaded.offered - overloaded.completed > 0
    in_window = overloaded.answered_in_window
    assert overloaded.throughput_per_s == in_window / 1.5
    assert in_window < overloaded.completed < overloaded.offered
    table = printed(bench_table(overloaded))
    later, unanswered = overloaded.answered_later, counts["cancelled"]
    assert later == overloaded.completed - in_window  # without a warm-up
    assert f"{overloaded.throughput_per_s:.2f}/s: {in_window} answered within the 1.5 s, {later} later" in table
    assert f"{overloaded.offered} at 200/s in the window of 1.5 s" in table
    late = overloaded.completed - overloaded.answered_in_time
    assert f"{late} later than 1.00 s after the window" in overloaded.verdict or not late
    assert f"{unanswered} not answered" in overloaded.verdict or not unanswered
    found = target.saturate(30.0, window_s=1.5, tolerance=0.3)
    assert found.highest_rate_per_s is not None
    assert 0 < found.highest_rate_per_s < 1000


@pytest.mark.slow
def test_answers_to_the_warm_up_count_as_throughput_in_the_window(tmp_path: Path, start) -> None:
    """As in simulations: with 0.8 s of latency one request is answered after the window, and one of the warm-up in."""
    start(tmp_path, chain(tmp_path, slow_s=0.4, links=[Link("edge", "cloud", 0.0, None, 0.001)]))
    target = Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC))
    result = target.measure(2.0, LoadSettings(3.0, 1.0))
    assert (result.offered, result.completed, result.answered_later) == (6, 6, 1)
    assert (result.answered_in_window, result.answered_of_warmup, result.throughput_per_s) == (6, 1, 2.0)
    assert "2.00/s: 6 answered within the 3 s (5 sent in it, 1 in the warm-up), 1 later" in printed(bench_table(result))


def printed(table: Table) -> str:
    """A table as text."""
    output = io.StringIO()
    Console(file=output, width=200).print(table)
    return output.getvalue()


@pytest.mark.slow
def test_hop_is_a_positive_time() -> None:
    hop = measure_hop(duration_s=1.0)
    assert hop.seconds > 0.0
    assert hop.noise >= 0.0


@pytest.mark.slow
def test_a_plan_that_is_stopped_meanwhile_is_not_measured_but_its_outcomes_are_told(tmp_path: Path) -> None:
    running = launcher.up(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 2.0, None, 0.001)]))
    target = Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, None))
    begun = threading.Event()

    def progress(done_s: float, _: float, label: str) -> None:
        if label == "offering load" and done_s > 0.3:
            begun.set()

    try:
        with ThreadPoolExecutor(1) as pool:
            measured = pool.submit(target.measure, 20.0, LoadSettings(4.0, 0.1), progress)
            assert begun.wait(60.0)
            running.down()
            with pytest.raises(ServingError, match=r"served no more: it was stopped.*nothing was stored") as refusal:
                measured.result()
    finally:
        with contextlib.suppress(NotRunningError):
            running.down()
    told = re.search(r"of 80 requests that were sent meanwhile (\d+) were answered, (\d+) ended", str(refusal.value))
    assert told is not None
    assert 0 < int(told[1]) < 80
    assert int(told[2]) > 0


@pytest.mark.slow
def test_a_plan_that_is_replaced_or_stopped_meanwhile_is_not_measured(tmp_path: Path) -> None:
    running = launcher.up(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 2.0, None, 0.001)]))
    target = Target.of(tmp_path, HeldOut({"x": INPUTS}, Arrivals.PERIODIC, None))
    try:
        assert replace_plan.apply(tmp_path, chain(tmp_path, links=[Link("edge", "cloud", 1.0, None, 0.001)]))
        with pytest.raises(ServingError, match=r"served no more: another took over.*nothing was stored"):
            target.measure(20.0, LoadSettings(0.2, 0.1))
        target = Target.of(tmp_path, target.data)
    finally:
        running.down()
    with pytest.raises(ServingError, match="served no more: it was stopped"):
        target.meters.require_served()
