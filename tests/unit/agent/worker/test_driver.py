"""The driver's thread with real executors: batches, and whatever a run does to it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import numpy as np
import pytest
from onnx import helper
from prometheus_client import CollectorRegistry, generate_latest

from jellybean_agent import (
    DELIVER_METHOD,
    GATEWAY,
    Array,
    EmulatedLinks,
    Executor,
    Inboxes,
    OpenPolicy,
    OperatorInput,
    Peer,
    PeerSettings,
    PlanView,
    RunOperator,
    StatusError,
    StreamSource,
    Transport,
    agent_service_handler,
    decode_tensor,
    encode_tensor,
    make_server,
    plan_view,
    status_of,
)
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.brain.plan_view import PythonView
from jellybean_agent.errors import RefusedValuesError
from jellybean_agent.execution.executor import RunResult
from jellybean_agent.process.metrics import AgentCollector
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_agent.worker.direct_calls import MAX_DIRECT_CALLS
from jellybean_agent.worker.driver import Driver
from jellybean_agent.worker.refused_values import attribute_error
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import make_plan, save, scale
from tests.unit.agent.worker.one_operator import Gated, view_of


def scrape(view: PlanView, driver: Driver) -> str:
    registry = CollectorRegistry()
    registry.register(AgentCollector(view, view.workers["edge-1"], driver.counters, lambda: driver))
    return generate_latest(registry).decode()


def answered(
    root: Path, view: PlanView, executor: Executor, requests: Sequence[Array], *, together: bool = False
) -> tuple[list[agent_pb2.Message], WorkerCounters, str]:
    """What a gateway gets for requests 0, 1, 2, ..., in their order; and the agent's figures and metrics.

    `together`: all come in one turn of the loop.
    """

    async def all_of_them() -> tuple[list[agent_pb2.Message], WorkerCounters, str]:
        answers: asyncio.Queue[agent_pb2.Message] = asyncio.Queue()
        inboxes = Inboxes(lambda message, _: answers.put_nowait(message), lambda _: False)
        server = make_server(OpenPolicy())
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        settings = PeerSettings("edge-1", Transport(insecure=True))
        gateway = Peer(GATEWAY, f"127.0.0.1:{port}", settings, on_lost=lambda *_: None).start()
        with EmulatedLinks(view.links, root / "links") as links:
            driver = Driver(view, "edge-1", {"double": executor}, {GATEWAY: gateway}, links)
            driver.start()
            for request, tensor in enumerate(requests):
                wire = agent_pb2.Message(
                    request_id=str(request),
                    upstream="x",
                    downstream="double",
                    tensor=encode_tensor(tensor),
                    plan=view.hash,
                )
                driver.receive(wire, StreamSource(GATEWAY))
                if not together:
                    await asyncio.sleep(0)
            if isinstance(executor, Gated):
                executor.gate.set()
            found = [await asyncio.wait_for(answers.get(), 20) for _ in requests]
            await asyncio.to_thread(driver.stop)
            scraped = scrape(view, driver)
        await gateway.close()
        await server.stop(0)
        return sorted(found, key=lambda message: int(message.request_id)), driver.counters, scraped

    return asyncio.run(all_of_them())


class FailsOnce(Executor):
    """A real executor whose first run meets a fault that nobody foresaw."""

    runs = 0

    def run(self, inputs: Sequence[OperatorInput], requests: int = 1) -> RunResult:
        self.runs += 1
        if self.runs == 1:
            raise ZeroDivisionError("a fault nobody foresaw")
        return super().run(inputs, requests)


class FailsToBegin:
    """An executor whose runs the event loop begins; the first meets a fault on its way there, the second back."""

    can_run_async = True
    due_s = since_s = 0.0
    runs = 0

    def run_async(self, requests: Sequence[Sequence[OperatorInput]], done: Any, _at: Any, **_how: float | None) -> None:
        self.runs += 1
        if self.runs == 1:
            raise MemoryError
        output = np.ones((1, 4), np.float32)
        results = [RunResult({"y": output}, 0.001)] * len(requests)
        asyncio.get_running_loop().call_soon(done, results if self.runs > 2 else [None])


def test_an_unforeseen_fault_where_the_loop_begins_a_run_fails_its_request_only(tmp_path: Path) -> None:
    async def asked() -> list[str]:
        view = view_of(tmp_path, scale(tmp_path / "models/double.onnx", 2.0), 1)
        with EmulatedLinks(view.links, tmp_path / "links") as links:
            gateway: Any = SimpleNamespace(expired=0, expire=lambda _: None, put=print, forget=print)
            executor: Any = FailsToBegin()
            driver = Driver(view, "edge-1", {"double": executor}, {GATEWAY: gateway}, links)
            driver.start()
            found = []
            for _ in range(3):
                try:
                    found.append(
                        str((await driver.call_operator("double", [np.ones((1, 4), np.float32)], 3.0))["y"].shape)
                    )
                except StatusError as error:
                    found.append(str(error))
            await asyncio.to_thread(driver.stop)
        return found

    first, second, third = asyncio.run(asked())
    assert "out of memory" in first
    assert "unexpected" in second
    assert third == "(1, 4)"


def test_a_run_under_way_counts_as_busy_and_the_counter_never_decreases(tmp_path: Path) -> None:
    def busy_s(text: str) -> float:
        line = next(line for line in text.splitlines() if line.startswith("jellybean_busy_seconds_total{"))
        return float(line.rsplit(" ", 1)[1])

    async def scraped() -> list[float]:
        sha256 = scale(tmp_path / "models/double.onnx", 2.0)
        view = view_of(tmp_path, sha256, 1)
        executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",))
        gateway: Any = SimpleNamespace(expired=0, expire=lambda _: None, put=print, forget=print)
        with EmulatedLinks(view.links, tmp_path / "links") as links:
            driver = Driver(view, "edge-1", {"double": executor}, {GATEWAY: gateway}, links)
            registry = CollectorRegistry()
            registry.register(AgentCollector(view, view.workers["edge-1"], driver.counters, lambda: driver))
            driver.start()
            call = asyncio.create_task(driver.call_operator("double", [np.ones((1, 4), np.float32)], 20.0))
            while not sum(driver.busy_s().values()):
                await asyncio.sleep(0.001)
            found = [busy_s(generate_latest(registry).decode()) for _ in range(3)]
            executor.gate.set()
            await call
            found.append(busy_s(generate_latest(registry).decode()))
            await asyncio.to_thread(driver.stop)
        return found

    found = asyncio.run(scraped())
    assert found[0] > 0
    assert found == sorted(found)


def test_an_unforeseen_fault_fails_its_request_only(tmp_path: Path) -> None:
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    executor = FailsOnce(tmp_path / "models/double.onnx", sha256, ("x",))
    ones = np.ones((1, 4), np.float32)
    (first, second), figures, _ = answered(tmp_path, view_of(tmp_path, sha256, 1), executor, [ones, ones])
    assert first.failure.operator == "double"
    assert "ZeroDivisionError('a fault nobody foresaw')" in first.failure.reason
    assert decode_tensor(second.tensor).tolist() == [[2, 2, 2, 2]]
    assert figures.failed == figures.completed == {"double": 1}


def test_requests_that_wait_share_runs_and_each_gets_its_own_row(tmp_path: Path) -> None:
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",), batch=4)
    requests = [np.full((1, 4), number, np.float32) for number in range(10)]
    found, figures, metrics = answered(tmp_path, view_of(tmp_path, sha256, 4), executor, requests)
    assert [decode_tensor(message.tensor).tolist() for message in found] == [[[2 * number] * 4] for number in range(10)]
    assert figures.runs == {"double": Counter({1: 2, 4: 2})}  # the first found the worker free, the last was left over
    assert figures.completed == {"double": 10}
    labels = 'operator="double",variant="only",worker="edge-1"'
    assert f'jellybean_runs_total{{batch="1",{labels}}} 2.0' in metrics
    assert f'jellybean_runs_total{{batch="4",{labels}}} 2.0' in metrics
    assert f"jellybean_requests_total{{{labels}}} 10.0" in metrics


def test_messages_of_one_turn_of_the_loop_share_a_run(tmp_path: Path) -> None:
    """As the children of a fan-out come, which one frame after the other brings."""
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    view = view_of(tmp_path, sha256, 4)
    executor = Executor(tmp_path / "models/double.onnx", sha256, ["x"], batch=4)
    requests = [np.full((1, 4), number, np.float32) for number in range(4)]
    found, counters, _ = answered(tmp_path, view, executor, requests, together=True)
    assert [decode_tensor(message.tensor)[0, 0] for message in found] == [0, 2, 4, 6]
    assert counters.runs == {"double": Counter({4: 1})}


def test_tensors_that_do_not_fit_together_run_one_after_another(tmp_path: Path) -> None:
    sha256 = scale(tmp_path / "models/double.onnx", 2.0, size="m")
    executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",), batch=4)
    requests = [np.ones((1, size), np.float32) for size in (1, 2, 3, 3, 3, 3, 3)]
    found, figures, _ = answered(tmp_path, view_of(tmp_path, sha256, 4), executor, requests)
    assert [decode_tensor(message.tensor).tolist() for message in found] == [
        [[2.0] * array.shape[1]] for array in requests
    ]
    assert figures.runs == {"double": Counter({1: 5, 2: 1})}  # 1; 2 3 3 3 apart; 3 3
    assert figures.failed_batches == {"double": 0}


def test_one_bad_request_of_a_batch_fails_alone(tmp_path: Path) -> None:
    """The model looks up a row: of eleven, so a twelfth breaks every run that it is in."""
    nodes = [
        helper.make_node("Cast", ["x"], ["at"], to=7),
        helper.make_node("Gather", ["table", "at"], ["y"], axis=0),
    ]
    sha256 = save(
        tmp_path / "models/double.onnx", nodes, {"x": ["n"]}, ("y", ["n"]), table=np.arange(11, dtype=np.float32)
    )
    executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",), batch=8)
    requests = [np.array([row], np.float32) for row in (0, 1, 2, 99, 4, 5)]
    found, figures, metrics = answered(tmp_path, view_of(tmp_path, sha256, 8), executor, requests)
    assert found[3].failure.reason == (
        "variant only cannot compute with the values of this request: Gather: indices element out of data bounds, "
        "idx=99 must be within the inclusive range [-11,10]"
    )
    assert found[3].failure.status == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert [decode_tensor(message.tensor).tolist() for message in found if not message.HasField("failure")] == [
        [0.0], [1.0], [2.0], [4.0], [5.0]
    ]  # fmt: skip
    assert (figures.completed, figures.failed, figures.failed_batches) == ({"double": 5}, {"double": 1}, {"double": 1})
    assert figures.runs == {"double": Counter({1: 5})}
    assert 'jellybean_failed_batches_total{operator="double",variant="only",worker="edge-1"} 1.0' in metrics


@pytest.mark.parametrize(
    ("step", "status", "reason"),
    [
        ("jellybean_agent.steps:cast", grpc.StatusCode.INVALID_ARGUMENT, "with the values of this request: Gather"),
        (None, grpc.StatusCode.INTERNAL, "with the output of number: Gather"),
    ],
)
def test_values_that_another_operator_computed_are_no_error_of_the_client(
    step: str | None, status: grpc.StatusCode, reason: str, tmp_path: Path
) -> None:
    plan = make_plan(
        tmp_path,
        {"number": (["x"], "0" * 64), "double": (["number"], "0" * 64)},
        [(1.0, {"number": "edge-1", "double": "edge-1"})],
        sources={"x": "edge"},
    )
    view = plan_view(plan)
    number = view.operators["number"]
    python = None if step is None else PythonView(step, "{}", "0" * 64)
    view = replace(view, operators={**view.operators, "number": replace(number, python=python)})
    run = RunOperator(0, "double", (WorkItem(0, "r", 0, (), ()),))
    error = attribute_error(view, run, RefusedValuesError("Gather: out of range"))
    assert status_of(error) is status
    assert reason in str(error)


def test_a_model_that_mixes_its_requests_answers_them_one_by_one_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It sums over the leading dimension, so that a batch has one row for all."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    sha256 = save(tmp_path / "models/double.onnx", [node], {"x": ["n", 2]}, ("y", [1, 2]), axes=np.array([0], np.int64))
    executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",), batch=4)
    requests = [np.full((1, 2), number, np.float32) for number in range(4)]
    found, figures, _ = answered(tmp_path, view_of(tmp_path, sha256, 4), executor, requests)
    assert [decode_tensor(message.tensor).tolist() for message in found] == [[[number, number]] for number in range(4)]
    assert (figures.failed, figures.failed_batches) == ({"double": 0}, {"double": 1})
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "jellybean.agent"]
    assert re.search(
        r"run of 3 requests of double failed, .* has shape \[1, 2\], not one row for each of the 3", warning
    )


def test_an_operator_asked_for_alone_has_figures_and_bounds_of_its_own(tmp_path: Path) -> None:
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    view = view_of(tmp_path, sha256, 1)
    executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",))
    ones = np.ones((1, 4), np.float32)

    async def ask() -> tuple[list[object], str]:
        with EmulatedLinks(view.links, tmp_path / "links") as links:
            driver = Driver(view, "edge-1", {"double": executor}, {}, links)
            driver.start()
            waiting = [
                asyncio.create_task(driver.call_operator("double", [ones], None)) for _ in range(MAX_DIRECT_CALLS - 1)
            ]
            wrong = asyncio.create_task(driver.call_operator("double", [np.ones((1, 5), np.float32)], None))
            await asyncio.sleep(0)
            assert (driver.direct_calls_in_flight, driver.queued) == (MAX_DIRECT_CALLS, MAX_DIRECT_CALLS - 1)
            with pytest.raises(StatusError, match=f"overloaded: .*, {MAX_DIRECT_CALLS} for single operators") as caught:
                await driver.call_operator("double", [ones], None)
            assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            waiting[5].cancel()
            await asyncio.wait([waiting[5]])
            assert (driver.direct_calls_in_flight, driver.queued) == (MAX_DIRECT_CALLS - 1, MAX_DIRECT_CALLS - 2)
            executor.gate.set()
            found = await asyncio.wait_for(asyncio.gather(*waiting, wrong, return_exceptions=True), 20)
            assert (driver.direct_calls_in_flight, driver.requests_in_flight) == (0, 0)
            assert driver.counters.completed == driver.counters.failed == {"double": 0}
            assert driver.counters.runs == {"double": Counter()}
            metrics = scrape(view, driver)
            executor.gate.clear()
            late = asyncio.create_task(driver.call_operator("double", [ones], None))
            await asyncio.sleep(0)
            driver.abandon_calls()
            with pytest.raises(StatusError, match="edge-1 is shutting down"):
                await late
            executor.gate.set()
            await asyncio.to_thread(driver.stop)
            return found, metrics

    found, metrics = asyncio.run(ask())
    assert isinstance(found.pop(5), asyncio.CancelledError)
    failed = found.pop()
    assert isinstance(failed, StatusError)
    assert failed.status is grpc.StatusCode.INVALID_ARGUMENT
    assert str(failed).startswith("operator double: input from x: expected float32 [any, 4], got float32 [1, 5]")
    assert [outputs["y"].tolist() for outputs in found] == [[[2, 2, 2, 2]]] * (MAX_DIRECT_CALLS - 2)
    labels = 'operator="double",outcome="{}",variant="only",worker="edge-1"'
    assert f"jellybean_asked_total{{{labels.format('failed')}}} 1.0" in metrics
    assert f"jellybean_asked_total{{{labels.format('completed')}}} {MAX_DIRECT_CALLS - 2}.0" in metrics
