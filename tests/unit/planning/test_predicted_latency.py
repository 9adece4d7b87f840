"""The definition of a plan's predicted p99 latency, its interval, and quick decisions."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from jellybean.display import formats
from jellybean.planning import predict, predicted_latency, predicted_p99
from jellybean.planning.predicted_latency import check_latency, judge, judged_latency, judged_so_far
from jellybean.planning.simulation import simulate_plan
from jellybean_solver import Certificate, Observer, Plan, SimulationResult, Slo
from tests.property.simulator.plans import chain, exponential
from tests.unit.simulator.test_sites import in_sites


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the simulations that a test makes."""
    made: list[int] = []

    def counted(plan: Plan, *, seed: int = 0, observer: Observer | None = None) -> SimulationResult:
        made.append(seed)
        return simulate_plan(plan, seed=seed, observer=observer)

    monkeypatch.setattr(predicted_latency, "simulate_plan", counted)
    monkeypatch.setattr(predicted_latency, "_cached", {})
    return made


@pytest.mark.slow
def test_it_is_the_median_of_five_simulations_and_their_range(seeds: list[int]) -> None:
    plan = chain([exponential(0.1)], 6.0)
    p99s = [simulate_plan(plan, seed=seed).latency_p99_s for seed in range(5)]
    found = predicted_p99(plan)[""]
    assert (found.p99_s, found.low_s, found.high_s) == (median(p99s), min(p99s), max(p99s))
    assert (found.simulations, found.complete, found.requests > 1_900) == (5, True, True)
    assert found.p50_s == median(simulate_plan(plan, seed=seed).latency_p50_s for seed in range(5))
    record = predict(plan)
    assert (record["latency_p50_s"], record["latency_p90_s"]) == (found.p50_s, found.p90_s)
    assert [record[f"latency_p99_{end}s"] for end in ("", "low_", "high_")] == [found.p99_s, found.low_s, found.high_s]
    priced = replace(plan, slo=Slo(latency_p99_s=1.0), certificate=Certificate(9.0, 1.0, 0.9, "gap"))
    judged = judged_latency(priced)  # prices and targets change no simulation
    assert judged is not None and judged.p99[""] == found
    assert seeds == list(range(5))


def test_with_many_sites_the_interval_is_from_batches_of_one_simulation(seeds: list[int]) -> None:
    found = predicted_p99(in_sites(chain([exponential(0.1)], 6.0), 100))[""]
    assert (found.simulations, found.complete) == (1, True)
    assert 0 <= found.low_s < found.p99_s < found.high_s
    assert found.p99_s - found.low_s == pytest.approx(found.high_s - found.p99_s)
    assert seeds == [0]


def test_a_quick_decision_makes_few_simulations_and_states_no_p99(seeds: list[int]) -> None:
    plan = chain([exponential(0.1)], 6.0)
    p99_s = simulate_plan(plan).latency_p99_s
    unknown = judged_so_far(replace(plan, slo=Slo(latency_p99_s=p99_s)))
    assert unknown is not None and unknown.p99[""].simulations == 0
    late = judge(replace(plan, slo=Slo(latency_p99_s=p99_s / 3)), whole=True)
    assert late is not None and not late.kept and not late.p99[""].complete
    stated = f"p99 latency would be about {formats.duration(p99_s)}, above the SLO"
    assert stated in late.text and "1 simulation of" in late.text
    assert check_latency(replace(plan, slo=Slo(latency_p99_s=3 * p99_s))) is None
    assert seeds == [0]
    so_far = judged_so_far(replace(plan, slo=Slo(latency_p99_s=p99_s)))
    assert so_far is not None and not so_far.p99[""].complete
    breach = check_latency(replace(plan, slo=Slo(latency_p99_s=p99_s / 3)))
    assert breach is not None and "about" not in breach and "(5 simulations of" in breach
    assert seeds == list(range(5))


def test_a_simulation_ends_once_it_is_certain_to_miss_the_target(seeds: list[int]) -> None:
    plan = chain([exponential(0.1)], 6.0)
    whole = simulate_plan(plan)
    late = judge(replace(plan, slo=Slo(latency_p99_s=whole.latency_p50_s)))
    assert late is not None and not late.kept and not late.p99[""].complete
    assert late.p99[""].requests < whole.offered / 4
    assert seeds == [0, 1, 2]  # a majority of five
    assert judge(replace(plan, slo=Slo(latency_p99_s=whole.latency_p50_s / 2))) is not None
    assert seeds == [0, 1, 2], "a tighter target is missed, too"
    met = judge(replace(plan, slo=Slo(latency_p99_s=3 * whole.latency_p99_s)))  # not from the unfinished ones
    assert met is not None and met.kept and met.p99[""].requests == whole.offered
