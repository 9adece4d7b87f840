"""Direct calls of a driver in simulated time: answers, deadlines, limits and cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean_agent import InvalidInputError, StatusError
from jellybean_agent.worker.direct_calls import MAX_DIRECT_CALLS
from tests.support.http2_client import settle
from tests.unit.agent.worker.timed_worker import Worker, one_operator, ones, with_worker


def test_a_direct_call_is_answered_by_the_models_output_names(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        calling = asyncio.create_task(worker.driver.call_operator("add", ones(4.0), None))
        await settle()
        assert (worker.driver.direct_calls_in_flight, worker.driver.requests_in_flight) == (1, 1)
        outputs = await calling
        assert {name: array.tolist() for name, array in outputs.items()} == {"y": [[5.0, 5.0]]}
        assert worker.driver.direct_calls_in_flight == 0
        counters = worker.driver.counters
        assert (counters.direct_calls, counters.completed, counters.handled) == ({"add": 1}, {"add": 0}, 1)
        assert worker.gateway.messages == []

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_direct_call_that_takes_too_long_is_dropped(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("r0", 0, "add")
        with pytest.raises(StatusError, match=r"no answer of add within 0.5 s: 1 requests wait") as refused:
            await worker.driver.call_operator("add", ones(), 0.5)
        assert refused.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
        assert worker.driver.direct_calls_in_flight == 0
        await asyncio.sleep(3.0)
        assert worker.sessions["add"].runs == [[0.0]], "it is not run any more"

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_direct_call_whose_run_fails_has_its_status(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.sessions["add"].fault = InvalidInputError("a wrong shape")
        with pytest.raises(StatusError, match=r"^operator add: a wrong shape$") as refused:
            await worker.driver.call_operator("add", ones(), None)
        assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
        counters = worker.driver.counters
        assert (counters.direct_calls_failed, counters.failed) == ({"add": 1}, {"add": 0})
        assert worker.gateway.messages == [], "the gateway has not asked for it"

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_direct_calls_are_bounded_in_number_and_by_the_queue(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        answers: list[Any] = []
        for _ in range(MAX_DIRECT_CALLS):
            worker.driver.begin_call("add", ones(), answers.append)
        assert worker.driver.queued == MAX_DIRECT_CALLS - 1
        with pytest.raises(StatusError, match="overloaded: 31 requests wait, 32 for single operators") as refused:
            worker.driver.begin_call("add", ones(), answers.append)
        assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        await asyncio.sleep(1.1)
        assert len(answers) == 1
        worker.driver.begin_call("add", ones(), answers.append)
        worker.driver.abandon_calls()
        assert worker.driver.direct_calls_in_flight == 0
        assert [type(answer) for answer in answers[1:]] == [StatusError] * 32
        assert str(answers[-1]) == "worker edge-1 is shutting down"
        assert answers[-1].status is grpc.StatusCode.UNAVAILABLE
        for number in range(65):
            worker.receive(f"r{number}", 0, "add")
        with pytest.raises(StatusError, match="overloaded"):
            worker.driver.begin_call("add", ones(), answers.append)

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_direct_call_that_is_cancelled_is_neither_run_nor_answered(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        answers: list[Any] = []
        first = worker.driver.begin_call("add", ones(1.0), answers.append)
        second = worker.driver.begin_call("add", ones(2.0), answers.append)
        third = worker.driver.begin_call("add", ones(3.0), answers.append)
        worker.driver.cancel_call(second)
        await settle()
        worker.driver.cancel_call(first)
        worker.driver.cancel_call("unknown")
        await asyncio.sleep(3.0)
        assert worker.sessions["add"].runs == [[1.0], [3.0]]
        assert [answer["y"][0, 0] for answer in answers] == [4.0]
        assert len({first, second, third}) == 3
        assert worker.driver.direct_calls_in_flight == 0

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)
