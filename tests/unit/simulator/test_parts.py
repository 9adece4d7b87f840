"""Service times, children, answers and routes, each by itself."""

from __future__ import annotations

import random

import pytest

from jellybean_solver import Arrivals, RouteDrawer, ServiceTime, SolverError, arrival_times, nearest_rank
from jellybean_solver.model.distributions import child_count, service_sampler
from jellybean_solver.simulation.answers import Answers

MEASURED = ServiceTime(0.1, 0.1, ((0.5, 0.08), (0.9, 0.12), (0.99, 0.3)))


def test_samples_have_the_stated_mean_and_the_shape_of_the_quantiles() -> None:
    rng, draw = random.Random(1), service_sampler({1: MEASURED})
    samples = sorted(draw(rng, 1) for _ in range(100_000))
    assert sum(samples) / len(samples) == pytest.approx(0.1, rel=5e-3)
    scale = samples[0] / 0.08
    assert nearest_rank(samples, 0.4) == pytest.approx(0.08 * scale)
    assert nearest_rank(samples, 0.9) == pytest.approx(0.12 * scale, rel=0.04)
    assert nearest_rank(samples, 0.99) == pytest.approx(0.30 * scale, rel=0.03)
    assert 0.3 * scale < samples[-1] <= (0.3 + 0.01 * 0.18 / 0.09) * scale


@pytest.mark.parametrize(
    "quantiles",
    [
        (),
        ((0.5, 0.3),),
        ((0.0, 0.3),),
        ((1.0, 0.3),),
        ((0.5, 0.0), (0.9, 0.0)),
        ((0.5, 0.2), (0.9, 0.2)),
    ],
)
def test_without_spread_in_the_quantiles_every_sample_is_the_mean(quantiles: tuple[tuple[float, float], ...]) -> None:
    draw, rng = service_sampler({1: ServiceTime(0.1, 0.1, quantiles)}), random.Random(1)
    assert {round(draw(rng, 1), 12) for _ in range(100)} == {0.1}


def test_quantiles_that_reach_level_one_are_taken_as_they_are() -> None:
    draw, rng = service_sampler({1: ServiceTime(0.5, 0.5, ((0.0, 0.0), (1.0, 1.0)))}), random.Random(1)
    samples = sorted(draw(rng, 1) for _ in range(20_000))
    assert nearest_rank(samples, 0.25) == pytest.approx(0.25, abs=0.01)


def test_a_run_between_two_profiled_sizes_takes_what_lies_between_them() -> None:
    draw = service_sampler({1: ServiceTime(0.1, 0.1), 3: ServiceTime(0.2, 0.2), 8: ServiceTime(0.3, 0.3)})
    times = [draw(random.Random(1), size) for size in range(1, 9)]
    assert times == pytest.approx([0.1, 0.15, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3])


def test_so_do_its_mean_and_its_quantiles() -> None:
    narrow, wide = ServiceTime(0.1, 0.1, ((0.0, 0.0), (1.0, 0.2))), ServiceTime(0.4, 0.4, ((0.0, 0.2), (1.0, 0.6)))
    draw, rng = service_sampler({1: narrow, 4: wide}), random.Random(1)
    samples = sorted(draw(rng, 3) for _ in range(20_000))
    assert sum(samples) / len(samples) == pytest.approx(0.3, rel=5e-3)
    assert nearest_rank(samples, 0.25) == pytest.approx(0.05 / 3 + 0.3 * 2 / 3, abs=5e-3)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0, 2.75, 4.0])
def test_the_number_of_children_is_next_to_the_ratio_and_has_it_as_its_mean(ratio: float) -> None:
    counts = [child_count(ratio, level / 1000) for level in range(1000)]
    assert sum(counts) / 1000 == pytest.approx(ratio)
    assert max(counts) - min(counts) <= 1


def test_answers_of_nested_fan_outs_in_any_order() -> None:
    paths = [((0, 3), (0, 2)), ((0, 3), (1, 2)), ((1, 3), (0, 0)), ((2, 3), (0, 1))]
    for seed in range(20):
        order = random.Random(seed).sample(paths, len(paths))
        answers = Answers(["number", "other"])
        assert answers.add("other", ())
        for path in order:
            assert not answers.complete
            assert answers.add("number", path)
        assert answers.complete


def test_answers_refuse_repetitions_and_strangers() -> None:
    answers = Answers(["number"])
    assert not answers.add("other", ())
    assert answers.add("number", ((0, 2),))
    assert not answers.add("number", ((0, 2),))
    assert not answers.complete
    assert answers.add("number", ((1, 2),))
    assert answers.complete
    assert not answers.add("number", ((1, 2),))


def test_no_outer_child_at_all_is_a_whole_answer() -> None:
    answers = Answers(["number"])
    assert answers.add("number", ((0, 0), (0, 0)))
    assert answers.complete


def test_periodic_arrivals_are_evenly_spaced_from_their_phase() -> None:
    rng = random.Random(1)
    assert list(arrival_times([(1.0, 4.0)], Arrivals.PERIODIC, rng)) == [0.0, 0.25, 0.5, 0.75]
    assert list(arrival_times([(1.0, 4.0)], Arrivals.PERIODIC, rng, phase=0.5)) == [0.125, 0.375, 0.625, 0.875]
    assert list(arrival_times([(1.0, 0.0)], Arrivals.POISSON, rng)) == []


def test_poisson_arrivals_have_their_rate_and_variance() -> None:
    times = list(arrival_times([(1000.0, 100.0)], Arrivals.POISSON, random.Random(1)))
    assert times == sorted(times)
    counts = [0] * 1000
    for time in times:
        counts[int(time)] += 1
    mean = sum(counts) / 1000
    assert mean == pytest.approx(100, rel=0.01)
    assert sum((count - mean) ** 2 for count in counts) / 1000 == pytest.approx(100, rel=0.15)


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [nearest_rank(values, p) for p in (0.5, 0.9, 0.99, 1.0, 0.0)] == [50.0, 90.0, 99.0, 100.0, 1.0]
    assert nearest_rank([7.0], 0.99) == 7.0


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.5], [0.7, 0.2, 0.1], [5.0, 1.0, 1.0], [0.0, 1.0]])
def test_routes_stay_close_to_their_shares_at_every_moment(weights: list[float]) -> None:
    drawer, counts = RouteDrawer(weights), [0] * len(weights)
    for drawn in range(1, 1001):
        counts[drawer.draw()] += 1
        for weight, count in zip(weights, counts, strict=True):
            assert abs(count - drawn * weight / sum(weights)) <= len(weights)


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(SolverError, match="weights of at least 0"):
        RouteDrawer(weights)
