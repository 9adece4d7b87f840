"""A brain with more to do than it can: operators take turns by their planned load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from jellybean_agent import FAIR_QUEUEING_FROM, BatchPolicy, Brain, EdgeMessage, OperatorWiring, RunOperator

WIRING = {name: OperatorWiring(((f"{name} in", "each"),), ()) for name in ("slow", "quick", "rare")}


class Whole:
    def rows(self, downstream: str) -> int:
        return 1

    def take(self, downstream: str, row: int | None) -> object:
        return "out"


class Worker:
    """A brain in virtual time, whose runs take as long as their operator says."""

    def __init__(self, run_s: Mapping[str, float], shares: Mapping[str, float], batch: int = 1) -> None:
        routes = [dict.fromkeys(WIRING, "a-1")]
        self.brain = Brain("a-1", WIRING, routes, BatchPolicy(dict.fromkeys(WIRING, batch), shares=shares))
        self.run_s, self.now, self.number = run_s, 0.0, 0
        self.running: RunOperator | None = None
        self.busy: Counter[str] = Counter()
        self.order: list[str] = []

    def offer(self, operator: str, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            request = f"{operator} {self.number}"
            self._follow(self.brain.received(EdgeMessage(request, 0, f"{operator} in", operator), self.now))

    def step(self) -> None:
        """The run under way ends."""
        run = self.running
        assert run is not None
        self.running = None
        self.now += self.run_s[run.operator]
        self.busy[run.operator] += self.run_s[run.operator]
        self._follow(self.brain.completed(run.run, [Whole()] * len(run.items), self.now))

    def _follow(self, instructions) -> None:
        for one in instructions:
            if isinstance(one, RunOperator):
                self.running = one
                self.order += [item.request.split()[0] for item in one.items]


def test_few_that_wait_are_served_as_they_came() -> None:
    worker = Worker({"slow": 1.0, "quick": 0.1}, {"slow": 0.1, "quick": 0.8})
    worker.offer("slow", FAIR_QUEUEING_FROM // 2)
    worker.offer("quick", FAIR_QUEUEING_FROM // 2 - 1)
    for _ in range(FAIR_QUEUEING_FROM - 1):
        worker.step()
    assert worker.order == ["slow"] * (FAIR_QUEUEING_FROM // 2) + ["quick"] * (FAIR_QUEUEING_FROM // 2 - 1)


@pytest.mark.parametrize("batch", [1, 4])
def test_two_that_are_offered_too_much_share_the_time_as_planned(batch: int) -> None:
    worker = Worker({"slow": 1.0, "quick": 0.1}, {"slow": 0.6, "quick": 0.2}, batch)
    for _ in range(400):
        worker.offer("slow", batch)
        worker.offer("quick", 10 * batch)
        worker.step()
    assert worker.busy["slow"] / worker.busy["quick"] == pytest.approx(3.0, rel=0.05)


def test_one_that_is_offered_too_much_holds_up_the_others_by_a_run_and_not_by_its_queue() -> None:
    worker = Worker({"slow": 1.0, "quick": 0.1}, {"slow": 0.5, "quick": 0.3})
    worker.offer("slow", 200)
    for _ in range(50):
        worker.offer("quick")
        worker.step()
        worker.step()
        assert "quick" in worker.order[-3:]  # after the run under way, and one more at most
    assert worker.order.count("quick") >= 49


def test_who_waited_for_nothing_has_saved_nothing_up() -> None:
    worker = Worker({"slow": 1.0, "quick": 1.0}, {"slow": 0.5, "quick": 0.5})
    worker.offer("slow", 300)
    for _ in range(100):
        worker.step()
    worker.offer("quick", 100)
    for _ in range(40):
        worker.step()
    assert 18 <= worker.order[-40:].count("quick") <= 22


def test_what_is_planned_to_take_no_time_gets_turns_too() -> None:
    worker = Worker({"slow": 1.0, "rare": 1.0}, {"slow": 0.9, "rare": 0.0})
    worker.offer("slow", 300)
    worker.offer("rare", 2)
    for _ in range(150):
        worker.step()
    assert worker.order.count("rare") == 2
