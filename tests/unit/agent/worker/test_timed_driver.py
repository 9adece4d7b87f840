"""A driver in simulated time: runs, batches, deadlines, cancellation and backpressure."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import AgentError, InvalidInputError, PermanentError, PlanViewError
from jellybean_agent.errors import CrashError, TransientError
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver import Link
from jellybean_solver.model.plan_document import Document
from tests.support.http2_client import settle
from tests.support.tiny_models import make_plan
from tests.support.waiting import wait_until_async
from tests.unit.agent.worker.timed_worker import HASH, RUN_S, Worker, one_operator, with_worker


def join(root: Path, **settings: Any) -> Document:
    """An operator with two inputs, then one elsewhere."""
    operators = {"both": (["x", "z"], HASH), "last": (["both"], HASH)}
    routes = [(1.0, {"both": "edge-1", "last": "cloud-1"})]
    return make_plan(root, operators, routes, sources={"x": "edge", "z": "edge"}, **settings)


def status(failure: agent_pb2.Failure) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == failure.status)


def test_requests_run_one_after_another_and_are_answered(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        for number in range(3):
            worker.receive(f"r{number}", number, "add")
        assert (worker.driver.queued, worker.driver.requests_in_flight) == (2, 3)
        assert worker.driver.queued_by_operator() == {"add": 2}
        await asyncio.sleep(0.5)
        assert worker.driver.busy_s() == {"add": pytest.approx(0.5)}
        assert worker.gateway.messages == []
        await asyncio.sleep(0.6)
        assert worker.gateway.answers == {"r0": 1.0}
        await asyncio.sleep(2.0)
        assert worker.gateway.answers == {"r0": 1.0, "r1": 2.0, "r2": 3.0}
        assert [message.plan for message in worker.gateway.messages] == [worker.view.hash] * 3
        assert {message.upstream for message in worker.gateway.messages} == {"add"}
        assert worker.driver.requests_in_flight == 0
        counters = worker.driver.counters
        assert (counters.completed, counters.runs) == ({"add": 3}, {"add": Counter({1: 3})})
        assert counters.handled == 3
        assert "" in worker.capacity

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_requests_that_wait_share_a_run(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        for number in range(10):
            worker.receive(f"r{number}", number, "add")
        await asyncio.sleep(3.5 * RUN_S)
        assert worker.sessions["add"].runs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert worker.gateway.answers == {f"r{number}": number + 1.0 for number in range(10)}
        assert worker.driver.counters.runs == {"add": Counter({4: 2, 2: 1})}
        assert worker.driver.counters.completed == {"add": 10}

    with_worker(one_operator(tmp_path, batch=4), "edge-1", tmp_path, test)


def test_a_batch_waits_for_more_up_to_its_delay(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("r0", 0, "add")
        await asyncio.sleep(4.9)
        worker.receive("r1", 1, "add")
        assert worker.sessions["add"].runs == []
        await asyncio.sleep(0.2)
        assert worker.sessions["add"].runs == [[0, 1]]
        await asyncio.sleep(RUN_S)
        for number in range(2, 6):
            worker.receive(f"r{number}", number, "add")
        await settle()
        assert worker.sessions["add"].runs == [[0, 1], [2, 3, 4, 5]], "a full batch does not wait"
        await asyncio.sleep(20.0)
        assert len(worker.gateway.answers) == 6

    with_worker(one_operator(tmp_path, batch=4, batch_delay_s=5.0), "edge-1", tmp_path, test)


def test_a_request_that_is_too_late_is_not_run(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("r0", 0, "add")
        worker.receive("late", 1, "add", left_s=0.5)
        worker.receive("in time", 2, "add", left_s=5.0)
        await asyncio.sleep(3.5)
        assert worker.gateway.answers == {"r0": 1.0, "in time": 3.0}
        assert worker.gateway.failures == {}
        assert worker.driver.counters.expired == {"add": 0, "": 1}, "the check of each second found it"
        loop_s = asyncio.get_running_loop().time()
        assert worker.gateway.until_s[1] == pytest.approx(loop_s + 1.5)
        assert worker.gateway.until_s[0] == pytest.approx(loop_s - 3.5 + 3600.0)

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_request_whose_deadline_passes_in_the_queue_is_dropped_when_its_turn_comes(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        await asyncio.sleep(0.3)
        worker.receive("r0", 0, "add")
        worker.receive("late", 1, "add", left_s=0.95)
        await asyncio.sleep(2.5)
        assert worker.gateway.answers == {"r0": 1.0}
        assert worker.driver.counters.expired == {"add": 1, "": 0}

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_requests_that_wait_for_an_input_expire_with_their_unsent_messages(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("r0", 0, "both", "x", left_s=2.5)
        worker.receive("r1", 0, "both", "x", left_s=60.0)
        await asyncio.sleep(2.4)
        assert worker.driver.requests_in_flight == 2
        await asyncio.sleep(1.0)
        assert worker.driver.requests_in_flight == 1
        assert worker.driver.counters.expired[""] == 1
        assert all(sent.expiries == 3 for sent in worker.sent.values())
        worker.receive("r0", 0, "both", "z")
        await asyncio.sleep(2.0)
        assert worker.sent["cloud-1"].answers == {}
        worker.receive("r1", 4, "both", "z")
        await asyncio.sleep(1.1)
        assert worker.sent["cloud-1"].answers == {"r1": 1.0}

    with_worker(join(tmp_path), "edge-1", tmp_path, test)


def test_a_request_that_is_given_up_is_not_run_or_its_outputs_are_discarded(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        for number in range(3):
            worker.receive(f"r{number}", number, "both", "x")
            worker.receive(f"r{number}", number, "both", "z")
        worker.give_up("r0")
        worker.give_up("r1")
        assert worker.sent["cloud-1"].forgotten == ["r0", "r1"]
        assert worker.gateway.forgotten == [], "the gateway still gets failures"
        await asyncio.sleep(4.0)
        assert worker.sent["cloud-1"].answers == {"r2": 3.0}
        assert worker.sessions["both"].runs == [[0.0], [2.0]]
        assert worker.driver.requests_in_flight == 0
        assert worker.gateway.messages == []

    with_worker(join(tmp_path), "edge-1", tmp_path, test)


def test_outputs_cross_the_link_to_another_tier_and_are_counted(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        began_s = asyncio.get_running_loop().time()
        for number in range(2):
            for upstream in ("x", "z"):
                worker.receive(f"r{number}", number, "both", upstream)
        await asyncio.sleep(2.5)
        sent = worker.sent["cloud-1"]
        assert [message.downstream for message in sent.messages] == ["last", "last"]
        assert sent.due_s == [pytest.approx(began_s + 1.0 + 3.0 + 0.25), pytest.approx(began_s + 4.0 + 3.0 + 0.25)]
        assert worker.driver.counters.link_bytes == {("both", "cloud"): 16}

    link = Link("edge", "cloud", price_usd_per_gib=0.1, bandwidth_bytes_per_s=8.0 / 3.0, latency_s=0.25)
    with_worker(join(tmp_path, links=(link,)), "edge-1", tmp_path, test)


def test_a_message_of_another_plan_is_refused(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        reason = f"edge-1 serves plan {worker.view.hash[:12]}, the message is of ffffffffffff"
        with pytest.raises(PlanViewError, match=reason):
            worker.receive("r0", 0, "add", plan="f" * 64)
        assert worker.driver.requests_in_flight == 0

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"downstream": "other"}, "no operator 'other' on route 0 here"),
        ({"route": 1}, "no operator 'add' on route 1 here"),
        ({"upstream": "y"}, "add has no input from 'y'"),
    ],
)
def test_a_message_that_does_not_fit_fails_its_request_alone(
    tmp_path: Path, content: dict[str, Any], reason: str
) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("good", 1, "add")
        worker.receive("bad", 1, **{"downstream": "add", **content})
        assert list(worker.gateway.failures) == ["bad"]
        failure = worker.gateway.failures["bad"]
        assert (failure.reason, status(failure), failure.worker) == (reason, grpc.StatusCode.INVALID_ARGUMENT, "edge-1")
        worker.receive("bad", 1, "add")
        await asyncio.sleep(2.5)
        assert worker.gateway.answers == {"good": 2.0}, "what is left of the bad one is not run"

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermanentError("it broke"), grpc.StatusCode.INTERNAL),
        (CrashError("it crashed"), grpc.StatusCode.INTERNAL),
        (InvalidInputError("a wrong shape"), grpc.StatusCode.INVALID_ARGUMENT),
        (TransientError("not now"), grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_run_that_fails_fails_its_request_with_its_status(
    tmp_path: Path, error: AgentError, code: grpc.StatusCode
) -> None:
    async def test(worker: Worker) -> None:
        worker.sessions["add"].fault = error
        worker.receive("r0", 0, "add")
        await asyncio.sleep(1.1)
        (failure,) = worker.gateway.failures.values()
        assert (failure.reason, status(failure)) == (str(error), code)
        assert (failure.worker, failure.operator) == ("edge-1", "add")
        worker.sessions["add"].fault = None
        worker.receive("r1", 0, "add")
        await asyncio.sleep(1.1)
        assert worker.gateway.answers == {"r1": 1.0}
        counters = worker.driver.counters
        assert (counters.failed, counters.completed, counters.failed_batches) == ({"add": 1}, {"add": 1}, {"add": 0})

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_run_that_ends_and_then_fails_to_begin_ends_once(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        session = worker.sessions["add"]

        def run_at_once(feeds: Any, finished: Any, *_: object) -> None:
            finished([session.run(feed) for feed in feeds])
            raise PermanentError("its device is gone")

        session.run_async = run_at_once  # type: ignore[method-assign]
        worker.receive("r0", 0.0, "add")
        await asyncio.sleep(3 * RUN_S)
        assert (worker.gateway.answers, worker.gateway.failures) == ({"r0": 1.0}, {})
        assert worker.driver.counters.completed == {"add": 1}

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_batch_that_fails_runs_again_one_by_one(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.sessions["add"].fault = PermanentError("it broke")
        for number in range(3):
            worker.receive(f"r{number}", number, "add")
        await asyncio.sleep(1.1)
        worker.sessions["add"].fault = None
        assert worker.gateway.messages == []
        await asyncio.sleep(3.1)
        assert worker.sessions["add"].runs == [[0, 1, 2], [0], [1], [2]]
        assert set(worker.gateway.failures) | set(worker.gateway.answers) == {"r0", "r1", "r2"}
        assert worker.driver.counters.failed_batches == {"add": 1}

    with_worker(one_operator(tmp_path, batch=4), "edge-1", tmp_path, test)


def test_a_full_queue_grants_no_credit_until_it_is_half_empty(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        for number in range(64):
            worker.receive(f"r{number}", number, "add")
        assert not worker.driver.is_full()
        worker.receive("r64", 0, "add")
        assert (worker.driver.queued, worker.driver.is_full()) == (64, True)
        await asyncio.sleep(31.5)
        assert (worker.driver.queued, worker.capacity) == (33, [])
        await asyncio.sleep(1.0)
        assert (worker.driver.queued, worker.capacity) == (32, [""])

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_a_lost_peer_fails_the_requests_it_may_not_have_got_once_each(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.receive("r0", 0, "both", "x")
        lost = [agent_pb2.Message(request_id=request, downstream="last") for request in ("r0", "r1", "r1")]
        worker.driver.peer_lost("cloud-1", "nothing was heard from it", lost)
        assert list(worker.gateway.failures) == ["r0", "r1"]
        assert len(worker.gateway.messages) == 2
        failure = worker.gateway.failures["r1"]
        assert failure.reason == "worker cloud-1 cannot be reached: nothing was heard from it"
        assert (failure.worker, failure.operator, status(failure)) == ("cloud-1", "last", grpc.StatusCode.UNAVAILABLE)
        assert worker.sent["cloud-1"].forgotten == ["r0", "r1"]
        assert worker.driver.requests_in_flight == 0
        worker.driver.peer_lost("cloud-1", "again", [])
        assert len(worker.gateway.messages) == 2

    with_worker(join(tmp_path), "edge-1", tmp_path, test)


def test_unsent_messages_that_expired_are_counted_for_all_peers(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        worker.sent["cloud-1"].expired = 2
        worker.gateway.expired = 3
        assert worker.driver.unsent_expired == 5

    with_worker(join(tmp_path), "edge-1", tmp_path, test)


# -- direct calls ------------------------------------------------------------------------------------------------------


def test_runs_of_models_that_cannot_be_stacked_answer_each_item(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        for number in range(3):
            worker.receive(f"r{number}", number, "add", left_s=math.inf)
        await asyncio.sleep(0.1)
        assert worker.driver.requests_in_flight == 3
        await asyncio.sleep(3.1)
        assert worker.gateway.answers == {"r0": 1.0, "r1": 2.0, "r2": 3.0}

    with_worker(one_operator(tmp_path, batch=2), "edge-1", tmp_path, test)


def test_a_driver_that_has_stopped_checks_no_deadlines(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        await asyncio.sleep(1.1)
        assert worker.gateway.expiries == 1
        worker.driver.stop()
        await asyncio.sleep(10.0)
        assert worker.gateway.expiries == 1

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (np.zeros((1, 2), np.complex64), "complex64"),
        (np.float32(3), "output y of shape [] cannot be split into requests"),
    ],
)
def test_an_output_that_cannot_be_sent_fails_its_request_alone(tmp_path: Path, made: Any, reason: str) -> None:
    async def test(worker: Worker) -> None:
        session = worker.sessions["both"]
        session.made = np.asarray(made)
        for upstream in ("x", "z"):
            worker.receive("bad", 1, "both", upstream)
        await asyncio.sleep(1.1)
        (failure,) = worker.gateway.failures.values()
        assert reason in failure.reason
        assert (failure.operator, status(failure)) == ("both", grpc.StatusCode.INTERNAL)
        assert worker.sent["cloud-1"].messages == []
        assert worker.driver.requests_in_flight == 0
        session.made = None
        for upstream in ("x", "z"):
            worker.receive("good", 1, "both", upstream)
        await asyncio.sleep(1.1)
        assert worker.sent["cloud-1"].answers == {"good": 2.0}

    with_worker(join(tmp_path), "edge-1", tmp_path, test)


def test_several_operators_of_a_worker_hand_requests_on_without_sending(tmp_path: Path) -> None:
    operators = {"add": (["x"], HASH), "more": (["add"], HASH)}
    document = make_plan(tmp_path, operators, [(1.0, dict.fromkeys(operators, "edge-1"))], sources={"x": "edge"})

    async def test(worker: Worker) -> None:
        worker.receive("r0", 1, "add")
        worker.receive("r1", 5, "add")
        await asyncio.sleep(4.1)
        assert worker.gateway.answers == {"r0": 3.0, "r1": 7.0}
        assert worker.driver.counters.completed == {"add": 2, "more": 2}

    with_worker(document, "edge-1", tmp_path, test)


class Blocking:
    """A model that runs in the executor's thread: it adds one."""

    def __init__(self, worker: Worker, operator: str) -> None:
        session: Any = worker.sessions[operator]
        session.can_run_async = lambda: False


def test_a_model_that_cannot_run_from_the_loop_runs_in_the_thread(tmp_path: Path) -> None:
    async def test(worker: Worker) -> None:
        Blocking(worker, "add")
        for number in range(5):
            worker.receive(f"r{number}", number, "add")
        await wait_until_async(lambda: len(worker.gateway.answers) == 5)
        assert worker.gateway.answers == {f"r{number}": number + 1.0 for number in range(5)}
        assert worker.driver.queued == 0
        assert worker.sessions["add"].runs == []

    with_worker(one_operator(tmp_path), "edge-1", tmp_path, test)


def test_the_next_run_goes_to_where_its_model_is(tmp_path: Path) -> None:
    operators = {"add": (["x"], HASH), "more": (["add"], HASH)}
    document = make_plan(tmp_path, operators, [(1.0, dict.fromkeys(operators, "edge-1"))], sources={"x": "edge"})

    async def test(worker: Worker) -> None:
        Blocking(worker, "add")
        for number in range(3):
            worker.receive(f"r{number}", number, "add")
        await wait_until_async(lambda: len(worker.gateway.answers) == 3)
        assert worker.gateway.answers == {f"r{number}": number + 2.0 for number in range(3)}
        assert len(worker.sessions["more"].runs) == 3

    with_worker(document, "edge-1", tmp_path, test)
