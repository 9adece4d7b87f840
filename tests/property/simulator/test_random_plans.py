"""Random plans: conservation, loads and Little's law, whatever the wiring."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.planning.simulation import capacity_scale, load_by_worker, simulate_plan, unloaded_latency_s
from jellybean_solver import from_document, to_document
from tests.property.simulator.plans import random_plan
from tests.support.examples import examples
from tests.support.simulated_queues import measured

randoms = st.randoms(use_true_random=False)


@settings(deadline=None, max_examples=examples(150))
@given(randoms, st.floats(0.05, 1.5))
def test_every_request_is_answered_once_and_the_same_seed_repeats(rng: random.Random, load: float) -> None:
    plan = random_plan(rng, load, batches=True)
    duration_s = 30 / plan.sources[0].rate_per_s
    result = simulate_plan(plan, seed=7, duration_s=duration_s, warmup_s=0.0)  # raises on a second answer
    assert result.completed == result.offered
    assert all(0 <= busy <= 1 + 1e-9 for busy in result.utilisation.values())
    assert simulate_plan(plan, seed=7, duration_s=duration_s, warmup_s=0.0) == result
    assert simulate_plan(from_document(to_document(plan)), seed=7, duration_s=duration_s, warmup_s=0.0) == result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))  # fixed, because a bound on chance is broken by chance
def test_long_runs_reach_the_plans_loads_and_obey_littles_law(seed: int) -> None:
    plan = random_plan(random.Random(seed), load=0.6)
    rates = [source.rate_per_s for source in plan.sources]
    found = measured(plan, duration_s=3000 / min(rates), warmup_s=0.0)
    loads = load_by_worker(plan)
    for worker in plan.workers:
        assert loads[worker.name] == pytest.approx(worker.load)
        assert found.utilisation(worker.name) == pytest.approx(loads[worker.name], rel=0.2, abs=0.02)
    assert capacity_scale(plan) <= 1 / 0.6 + 1e-9
    waiting = sum(f.requests * f.wait_mean_s for f in found.operators.values() if f.runs) / found.window.length_s
    assert sum(queue.mean for queue in found.queues.values()) == pytest.approx(waiting, rel=0.05, abs=0.05)


@settings(deadline=None, max_examples=examples(50))
@given(randoms)
def test_an_unloaded_request_is_never_slower_than_a_loaded_one(rng: random.Random) -> None:
    plan = random_plan(rng, load=0.9)
    unloaded = unloaded_latency_s(plan, requests=40)
    loaded = measured(plan, duration_s=100 / plan.sources[0].rate_per_s).latency_max_s
    assert unloaded <= loaded * (1 + 1e-9)
