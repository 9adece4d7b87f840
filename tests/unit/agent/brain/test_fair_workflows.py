"""A worker that several workflows share: each gets its planned part of the time, however much another asks for."""

from __future__ import annotations

import pytest

from jellybean_agent import BatchPolicy, Brain, EdgeMessage, OperatorWiring, RequestFailed, RunOperator

RUN_S = {"shop/slow": 1.0, "shop/also": 1.0, "yard/quick": 0.1}
WIRING = {name: OperatorWiring(((f"{name} in", "each"),), ()) for name in RUN_S}
WORKFLOWS = {name: name.partition("/")[0] for name in RUN_S}
ROUTES = [{"shop/slow": "a-1", "shop/also": "a-1"}, {"yard/quick": "a-1"}]


class Worker:
    """A brain in virtual time."""

    def __init__(self, shares: dict[str, float]) -> None:
        self.brain = Brain("a-1", WIRING, ROUTES, BatchPolicy(shares=shares, workflows=WORKFLOWS))
        self.now, self.number, self.order = 0.0, 0, list[str]()
        self.running: RunOperator | None = None

    def offer(self, operator: str, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            route = 1 if operator.startswith("yard") else 0
            message = EdgeMessage(f"r-{self.number}", route, f"{operator} in", operator)
            self._follow(self.brain.received(message, self.now))

    def step(self) -> None:
        run, self.running = self.running, None
        assert run is not None
        self.now += RUN_S[run.operator]
        self._follow(self.brain.completed(run.run, [_Whole()] * len(run.items), self.now))

    def _follow(self, instructions: object) -> None:
        for one in instructions:  # type: ignore[attr-defined]
            if isinstance(one, RunOperator):
                self.running = one
                self.order += [one.operator] * len(one.items)


class _Whole:
    def rows(self, downstream: str) -> int:
        return 1

    def take(self, downstream: str, row: int | None) -> object:
        return "out"


def test_a_short_queue_of_another_workflow_is_not_waited_for() -> None:
    worker = Worker({"shop/slow": 0.5, "yard/quick": 0.1})
    worker.offer("shop/slow", 10)  # far fewer than operators of one workflow take turns from
    worker.offer("yard/quick")
    worker.step()
    worker.step()
    assert "yard/quick" in worker.order[:3]


def test_a_flood_of_one_workflow_leaves_the_other_its_planned_part() -> None:
    worker = Worker({"shop/slow": 0.3, "shop/also": 0.3, "yard/quick": 0.2})
    for _ in range(400):
        worker.offer("shop/slow", 2)
        worker.offer("shop/also", 2)
        worker.offer("yard/quick", 10)
        worker.step()
    busy = {name: worker.order.count(name) * run_s for name, run_s in RUN_S.items()}
    assert (busy["shop/slow"] + busy["shop/also"]) / busy["yard/quick"] == pytest.approx(3.0, rel=0.05)


def test_one_that_asks_for_a_long_run_each_time_gets_no_more_than_its_part() -> None:
    """It waits for its answer before it asks again, so that its queue is empty whenever its run ends."""
    worker = Worker({"shop/slow": 0.1, "yard/quick": 0.4})
    worker.offer("yard/quick", 3000)
    worker.offer("shop/slow")
    for _ in range(600):
        was_slow = worker.running is not None and worker.running.operator == "shop/slow"
        worker.step()
        if was_slow:
            worker.offer("shop/slow")
    busy = {name: worker.order.count(name) * run_s for name, run_s in RUN_S.items()}
    assert busy["shop/slow"] / busy["yard/quick"] == pytest.approx(0.25, rel=0.1)


def test_operators_of_a_workflow_take_turns_whatever_another_does_between() -> None:
    worker = Worker({"shop/slow": 0.3, "shop/also": 0.3, "yard/quick": 0.3})
    worker.offer("shop/slow", 200)
    worker.offer("shop/also", 200)
    for _ in range(300):
        worker.offer("yard/quick")
        worker.step()
    assert worker.order.count("shop/slow") == pytest.approx(worker.order.count("shop/also"), abs=2)


def test_within_a_workflow_a_short_queue_is_served_as_it_came() -> None:
    worker = Worker({"shop/slow": 0.1, "shop/also": 0.5, "yard/quick": 0.2})
    worker.offer("shop/slow", 5)
    worker.offer("shop/also", 5)
    for _ in range(9):
        worker.step()
    assert worker.order == ["shop/slow"] * 5 + ["shop/also"] * 5


def test_each_workflow_has_a_queue_length_of_its_own() -> None:
    worker = Worker({"shop/slow": 0.5, "yard/quick": 0.1})
    worker.offer("shop/slow", 4)
    worker.offer("yard/quick", 2)
    assert (worker.brain.queued_of("shop"), worker.brain.queued_of("yard"), worker.brain.queued_of("")) == (3, 2, 5)


def test_a_message_on_a_route_of_another_workflow_is_refused() -> None:
    worker = Worker({})
    (failed,) = worker.brain.received(EdgeMessage("r-1", 1, "shop/slow in", "shop/slow"))
    assert isinstance(failed, RequestFailed)
    assert "route 1 does not lead to 'shop/slow'" in failed.reason
