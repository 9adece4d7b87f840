"""Simulations in a second process: the same as here, whatever becomes of it."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from jellybean.planning.deadline import second_process
from jellybean.planning.deadline.second_process import SecondProcess, processors, simulated
from jellybean_solver import Plan
from tests.property.simulator.plans import chain, exponential

PLAN = chain([exponential(0.01)], rate_per_s=50.0)
pytestmark = pytest.mark.skipif(processors() < 2, reason="a second process needs a second processor")


@pytest.fixture
def both() -> Iterator[SecondProcess]:
    pair = SecondProcess(start_after_s=0.0)
    pair.simulate(PLAN, [0], None)
    assert pair.at_once == 2
    yield pair
    pair.close()


def _pid(pair: SecondProcess) -> int:
    assert pair._process is not None
    return pair._process.pid


@pytest.mark.slow
@pytest.mark.parametrize("targets_s", [None, {"": 0.001}])
def test_the_second_process_simulates_what_this_one_would(
    both: SecondProcess, targets_s: dict[str, float] | None
) -> None:
    assert both.simulate(PLAN, [1, 2], targets_s) == [simulated(PLAN, seed, targets_s) for seed in (1, 2)]


def test_none_is_started_before_it_is_worth_it() -> None:
    pair = SecondProcess(start_after_s=3600.0)
    pair.simulate(PLAN, [0], None)
    assert pair.at_once == 1


@pytest.mark.slow
def test_a_killed_one_loses_nothing_and_is_started_again_where_it_is_worth_it(both: SecondProcess) -> None:
    for _ in range(2):
        os.kill(_pid(both), signal.SIGKILL)
        assert both.simulate(PLAN, [1, 2], None) == [simulated(PLAN, seed, None) for seed in (1, 2)]
        assert both.at_once == 1
        both.simulate(PLAN, [3], None)
        assert both.at_once == 2


@pytest.mark.slow
def test_it_answers_with_an_error_and_goes_on(both: SecondProcess) -> None:
    nowhere = replace(PLAN, sources=())
    with pytest.raises(Exception) as here:
        simulated(nowhere, 2, None)
    process = both._process
    assert process is not None and process.stdin is not None and process.stdout is not None
    pickle.dump((nowhere, 2, None, None), process.stdin)
    process.stdin.flush()
    assert isinstance(pickle.load(process.stdout), type(here.value))
    assert both.simulate(PLAN, [3, 4], None) == [simulated(PLAN, seed, None) for seed in (3, 4)]
    assert both._process is process


@pytest.mark.slow
def test_it_ends_when_nothing_is_asked() -> None:
    pair = SecondProcess(start_after_s=0.0, idle_s=0.2)
    pair.simulate(PLAN, [0], None)
    process = pair._process
    assert process is not None
    assert process.wait(timeout=30) == 0
    assert pair.simulate(PLAN, [1, 2], None) == [simulated(PLAN, seed, None) for seed in (1, 2)]
    pair.close()


def test_after_an_interrupt_no_answer_is_taken_for_another(
    both: SecondProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(plan: Plan, seed: int, targets_s: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(second_process, "simulated", interrupted)
        with pytest.raises(KeyboardInterrupt):
            both.simulate(PLAN, [1, 2], None)
    assert both.simulate(PLAN, [3, 4], None) == [simulated(PLAN, seed, None) for seed in (3, 4)]


def test_it_ends_with_this_process(both: SecondProcess) -> None:
    process = both._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
