"""What requests and answers are like: figures, samples, lines of the ledger, and what is unlike those expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jellybean.ledger import Figure, Ledger, Port, ValueLine, figures_of, keep_values
from jellybean.ledger.queries.plan_counts import plan_counts
from jellybean.ledger.value_figures import KEPT_S, MOST_VALUES, value_lines
from jellybean.report.drift.drift_watch import ALARM, DriftWatch
from jellybean.report.drift.served_values import value_observations
from jellybean.serving.gateway.accounting import value_log
from jellybean.serving.gateway.accounting.value_log import ValueLog
from jellybean_agent import RawTensor, encode_tensor, plan_view
from tests.support.examples import NIGHTLY
from tests.support.tiny_models import chain

INTERVAL_S, PER_INTERVAL = 10.0, 50


def test_figures_are_of_finite_values_and_bounded_in_number() -> None:
    assert figures_of(np.array([[1, 3]], np.uint8)) == {Figure.MEAN: 2.0, Figure.SPREAD: 1.0}
    assert figures_of(np.array([[np.nan, np.inf, 3.0]], np.float16)) == {Figure.MEAN: 3.0, Figure.SPREAD: 0.0}
    assert figures_of(np.zeros((0, 3), np.float32)) == {}
    assert figures_of(np.array([[True, False]]))[Figure.MEAN] == 0.5
    large = np.arange(10 * MOST_VALUES + 1, dtype=np.float32)
    assert figures_of(large)[Figure.MEAN] == pytest.approx(large.mean(), rel=0.01)


def test_a_sample_of_requests_is_written_and_survives_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, log = plan_view(chain(tmp_path)), ValueLog()
    now = [100.0]
    monkeypatch.setattr(value_log.time, "monotonic", lambda: now[0])
    for value in (1.0, 5.0, 3.0):  # the second comes too soon after the first
        log.see(view, Port.SOURCE, {"x": encode_tensor(np.full((1, 4), value, np.float32))})
        now[0] += 0.15
    log.see(view, Port.SOURCE, {"x": RawTensor("float32", (1, 4), b"short")})
    lines = log.take()
    assert {(line.figure, line.requests, line.mean, line.deviation) for line in lines} == {
        (Figure.MEAN, 2, 2.0, 1.0),
        (Figure.SPREAD, 2, 0.0, 0.0),
    }
    log.give_back(lines)
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    keep_values(ledger, log.take(), lines[0].begin_s)
    assert value_lines(ledger, view.hash) == lines
    assert log.take() == []
    keep_values(ledger, [], lines[0].begin_s + KEPT_S + 1.0)
    assert value_lines(ledger, view.hash) == []
    ledger.close()


def virtual(
    ledger: Ledger, seed: int, seconds: float, begin_s: float = 0.0, shift: float = 0.0, port: Port = Port.SOURCE
) -> None:
    """Intervals of requests like the held-out ones but for a shift, in standard deviations of the figure."""
    rng = np.random.default_rng(seed)
    means = rng.normal(shift, 1.0 / np.sqrt(PER_INTERVAL), int(seconds / INTERVAL_S))
    what = "w", "plan", port, "x", Figure.MEAN
    lines = [
        ValueLine(begin_s + INTERVAL_S * number, INTERVAL_S, *what, PER_INTERVAL, mean, 1.0)
        for number, mean in enumerate(means.tolist())
    ]
    keep_values(ledger, lines, begin_s)


def values(ledger: Ledger) -> tuple[ValueLine, ...]:
    counts = plan_counts(ledger, "plan")
    assert counts is not None
    return counts.values


def held_out(seed: int) -> dict[str, np.ndarray]:
    """Requests of one value each."""
    return {"x": np.random.default_rng(1000 + seed).normal(0.0, 1.0, (300, 1))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20 if NIGHTLY else 2))
def test_ten_days_of_inputs_like_the_held_out_ones_raise_no_alarm(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    virtual(ledger, seed, 10 * 86_400.0)
    watch = DriftWatch()
    for seen in value_observations(values(ledger), held_out(seed)):
        watch.see(seen)
        assert all(max(own.above.value, own.below.value) < ALARM for own in watch._watches.values())
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_inputs_shifted_by_a_standard_deviation_are_named_within_a_minute(
    tmp_path: Path, seed: int, shift: float
) -> None:
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    virtual(ledger, seed, 3600.0)
    virtual(ledger, seed + 500, 60.0, begin_s=3600.0, shift=shift)
    (drifted,) = DriftWatch().see_all(value_observations(values(ledger), held_out(seed))).drifted
    assert (drifted.name, drifted.is_relative) == ("mean of x", False)
    assert drifted.distance == pytest.approx(shift, abs=0.4)
    assert 3500.0 <= drifted.since_s <= 3630.0
    ledger.close()


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_compared_with_those_that_a_plan_began_with(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    virtual(ledger, seed, 3600.0, shift=7.0, port=Port.ANSWER)
    assert DriftWatch().see_all(value_observations(values(ledger), {})).drifted == ()
    virtual(ledger, seed + 500, 60.0, begin_s=3600.0, shift=8.0, port=Port.ANSWER)
    (drifted,) = DriftWatch().see_all(value_observations(values(ledger), {})).drifted
    assert drifted.name == "mean of x answers"
    assert drifted.distance == pytest.approx(1.0, abs=0.4)
    ledger.close()
