"""The agent's side of a model process, whose answers a test writes: results, faults, deaths and time limits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean_agent import (
    CPU,
    AgentError,
    Array,
    Device,
    InvalidInputError,
    ModelError,
    PermanentError,
    PythonStep,
    TensorPort,
    WorkLimit,
)
from jellybean_agent.errors import CrashError, RefusedValuesError, TransientError
from jellybean_agent.execution.emulation import EmulatedFinish
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.execution.process_wire import Conversation, SharedMemory
from tests.support.silent_process import SilentProcesses
from tests.support.simulated_time import run_in_simulated_time

PORTS = {"inputs": [["x", "float32", [-1, 2]]], "outputs": [["y", "float32", [-1, 2]], ["text", "string", [-1]]]}
X = np.array([[1.0, 2.0]], np.float32)


class Pool:
    """Starts "processes" whose end of the conversation a test holds. `code`: their exit code."""

    def __init__(self) -> None:
        self.processes: list[Conversation] = []
        self.ended: list[int] = []
        self.code = -int(signal.SIGKILL)
        self.answers: list[tuple[Mapping[str, Any], Sequence[Array]]] = [(PORTS, ())]  # to the requests to come

    def new_process(self) -> tuple[Conversation, int]:
        mine, other = socket.socketpair()
        file = os.memfd_create("test")
        process = Conversation(other, SharedMemory(os.dup(file)))
        for number, (header, arrays) in enumerate(self.answers):
            process.send(number, header, arrays)
        self.answers = [(PORTS, ())]
        self.processes.append(process)
        return Conversation(mine, SharedMemory(file)), 1000 + len(self.processes)

    def end_process(self, pid: int) -> int:
        self.ended.append(pid)
        return self.code

    def close(self) -> None:
        for process in self.processes:
            if process.connection.fileno() >= 0:
                process.close()


class Started:
    """A session in a "process" that has loaded it."""

    def __init__(self, pool: Pool, **limits: float) -> None:
        self.pool = pool
        untyped: Any = pool
        self.process = ModelProcess(untyped, **limits)
        self.session = self.process.open(Path("model.onnx"), "ab", CPU)
        self.requests = [self.peer.receive().header]
        self.served: list[tuple[Mapping[str, Any], list[Any]]] = []

    @property
    def peer(self) -> Conversation:
        return self.pool.processes[-1]

    def answer(self, *arrays: Array, **header: Any) -> None:
        """Answer the request that has come."""
        self.peer.send(object(), header, arrays)

    def run(self, *arrays: Array, **header: Any) -> list[Array]:
        """Run the model on `X`; the process gets the request, then answers."""

        def serve() -> None:
            self.served.append(self.request())
            self.answer(*arrays, **header)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return self.session.run({"x": X})
        finally:
            thread.join()

    def request(self) -> tuple[Mapping[str, Any], list[Any]]:
        """The request that was sent, and its tensors."""
        message = self.peer.receive()
        return message.header, [array.tolist() for array in message.arrays]


def with_pool(test: Callable[[Pool], Any]) -> None:
    pool = Pool()
    try:
        test(pool)
    finally:
        pool.close()


def test_a_model_is_loaded_and_run() -> None:
    def test(pool: Pool) -> None:
        started = Started(pool)
        session = started.session
        assert started.requests == [{"do": "load", "path": "model.onnx", "sha256": "ab", "device": ["cpu", []]}]
        assert session.inputs == (TensorPort("x", "float32", (-1, 2)),)
        assert session.outputs[0] == TensorPort("y", "float32", (-1, 2))
        assert (started.process.is_alive, started.process.pid, started.process.generation) == (True, 1001, 1)
        for number in range(3):
            (output,) = started.run(X * number)
            assert output.tolist() == (X * number).tolist()
            assert started.served[-1] == (
                {"do": "run", "path": "model.onnx", "names": ["x"], "runs": 1, "only": False},
                [X.tolist()],
            )
        assert started.process.close() == -9
        assert (started.process.is_alive, started.process.pid, pool.ended) == (False, 0, [1001])
        assert started.process.close() == 0

    with_pool(test)


def test_outputs_are_copies_as_the_next_run_overwrites_the_memory() -> None:
    def test(pool: Pool) -> None:
        started = Started(pool)
        (first,) = started.run(X)
        started.run(X * 7)
        assert first.tolist() == X.tolist()
        started.process.close()

    with_pool(test)


def test_a_function_is_loaded_by_its_name_and_arguments() -> None:
    def test(pool: Pool) -> None:
        untyped: Any = pool
        process = ModelProcess(untyped)
        step = PythonStep("jellybean_agent.steps:cast", '{"dtype": "int64"}', frozenset())
        process.open(step, "cd", Device("cpu", (("a", "b"),)))
        header = pool.processes[-1].receive().header
        assert (header["function"], header["arguments"]) == ("jellybean_agent.steps:cast", '{"dtype": "int64"}')
        assert header["device"] == ["cpu", [["a", "b"]]]
        process.close()

    with_pool(test)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("model", ModelError),
        ("run", PermanentError),
        ("input", InvalidInputError),
        ("values", RefusedValuesError),
        ("else", PermanentError),
    ],
)
def test_faults_that_the_process_tells(fault: str, kind: type[AgentError]) -> None:
    def test(pool: Pool) -> None:
        pool.answers = [({"fault": fault, "reason": "that is why"}, ())]
        untyped: Any = pool
        refusing = ModelProcess(untyped)
        with pytest.raises(kind, match=r"^that is why$") as raised:
            refusing.open(Path("m"), "", CPU)
        assert type(raised.value) is kind
        assert refusing.is_alive, "it may load others"
        refusing.close()
        pool.ended.clear()
        started = Started(pool)
        with pytest.raises(kind) as raised:
            started.run(fault=fault, reason="x" * 3000)
        assert (type(raised.value), len(str(raised.value))) == (kind, 2000)
        assert len(started.run(X)) == 1, "the process goes on"
        assert pool.ended == []
        started.process.close()

    with_pool(test)


@pytest.mark.parametrize(
    ("code", "reason"), [(-9, "was killed by SIGKILL"), (-11, "was killed by SIGSEGV"), (3, "ended with status 3")]
)
def test_a_process_that_dies_is_started_again_for_the_next_run(code: int, reason: str) -> None:
    def test(pool: Pool) -> None:
        started = Started(pool)
        pool.code = code
        started.peer.close()
        with pytest.raises(CrashError, match=f"the model crashed: its process {reason}; it is loaded again"):
            started.session.run({"x": X})
        assert (started.process.is_alive, started.session.is_loaded, pool.ended) == (False, False, [1001])
        assert not started.session.can_run_async()
        pool.answers = [(PORTS, ()), ({}, [X])]
        assert len(started.session.run({"x": X})) == 1
        assert (started.process.generation, started.session.is_loaded) == (2, True)
        assert started.session.can_run_async()
        started.process.close()

    with_pool(test)


def test_a_model_whose_loading_crashes_or_takes_too_long() -> None:
    def test(pool: Pool) -> None:
        untyped: Any = pool
        pool.answers = []
        with pytest.raises(ModelError, match=r"model m: loading it crashed: its process took longer than 0.01 s"):
            ModelProcess(untyped, load_limit_s=0.01).open(Path("m"), "", CPU)
        assert pool.ended == [1001]

    with_pool(test)


class LateError(Exception):
    pass


@pytest.mark.parametrize(
    ("left_s", "load_limit_s", "error", "ended"),
    [
        (0.01, 60.0, LateError, [1001]),
        (0.0, 60.0, LateError, []),
        (60.0, 0.01, ModelError, [1001]),
        (None, 0.01, ModelError, [1001]),
    ],
)
def test_the_time_that_is_left_of_the_work_limits_a_load(
    left_s: float | None, load_limit_s: float, error: type[Exception], ended: list[int]
) -> None:
    """Which then is no fault of the model."""
    starter = SilentProcesses()
    process = ModelProcess(starter, load_limit_s=load_limit_s)
    with pytest.raises(error):
        process.open(Path("m"), "", CPU, work=WorkLimit(lambda: left_s, LateError))
    assert starter.ended == ended
    assert not process.is_alive


def test_the_time_that_is_left_of_the_work_limits_a_run() -> None:
    def test(pool: Pool) -> None:
        untyped: Any = pool
        left_s = [60.0, 60.0, 0.01]  # at the start, the load and the run
        process = ModelProcess(untyped)
        session = process.open(Path("m"), "", CPU, work=WorkLimit(lambda: left_s.pop(0), LateError))
        with pytest.raises(LateError):
            session.run({"x": X})
        assert (pool.ended, left_s) == ([1001], [])

    with_pool(test)


def test_a_run_that_takes_too_long_ends_the_process() -> None:
    def test(pool: Pool) -> None:
        started = Started(pool, run_limit_s=0.01)
        with pytest.raises(CrashError, match=r"its process took longer than 0.01 s and was ended"):
            started.session.run({"x": X})
        assert pool.ended == [1001]

    with_pool(test)


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x02\0\0\0[]", b"\x01\0\0\0x", b'\x1b\0\0\0{"arrays":[["int3",[1],0]]}']
)
def test_an_answer_that_is_none_ends_the_process(data: bytes) -> None:
    def test(pool: Pool) -> None:
        started = Started(pool)
        started.peer.connection.sendall(data)
        with pytest.raises(CrashError, match="its process gave an invalid answer: "):
            started.session.run({"x": X})
        assert pool.ended == [1001]

    with_pool(test)


def test_an_answer_with_other_tensors_than_the_models_is_refused() -> None:
    def test(pool: Pool) -> None:
        started = Started(pool)
        with pytest.raises(PermanentError, match="gave 2 tensors for 1 runs with 1 outputs"):
            started.run(X, X)
        started.process.close()

    with_pool(test)


def test_a_pool_that_is_closed_starts_and_ends_nothing() -> None:
    pool = ModelProcessPool()
    with pytest.raises(TransientError, match="the process that starts model processes has died"):
        pool.new_process()
    assert pool.end_process(1) == -int(signal.SIGKILL)
    pool.close()


# -- runs that an event loop waits for ---------------------------------------------------------------------------------


class Answers:
    """What became of asynchronous runs."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def done(self, result: Any) -> None:
        if isinstance(result, AgentError):
            self.got.append(f"{type(result).__name__}: {result}")
        else:
            self.got.append([[array.tolist() for array in outputs] for outputs in result])


def in_loop(test: Callable[[Started, Answers], Any], **limits: float) -> None:
    pool = Pool()

    async def run() -> None:
        started = Started(pool, **limits)
        await test(started, Answers())
        started.process.close()

    try:
        run_in_simulated_time(run)
    finally:
        pool.close()


def test_the_loop_is_told_when_the_answer_has_come() -> None:
    async def test(started: Started, answers: Answers) -> None:
        for number in (1, 2):
            started.session.run_async([{"x": X}, {"x": X * 2}], answers.done)
            header, tensors = started.request()
            assert (header["runs"], header["only"], tensors) == (2, False, [X.tolist(), (X * 2).tolist()])
            await asyncio.sleep(1.0)
            assert len(answers.got) == number - 1
            started.answer(X, X * 3)
            await asyncio.sleep(0.01)
            assert answers.got[-1] == [[X.tolist()], [(X * 3).tolist()]]

    in_loop(test)


def test_the_process_is_told_if_no_other_request_waits() -> None:
    async def test(started: Started, answers: Answers) -> None:
        started.session.run_async([{"x": X}], answers.done, 0.0)
        assert started.request()[0]["only"]
        started.answer(X)
        await asyncio.sleep(0.01)
        assert len(answers.got) == 1

    in_loop(test)


def test_faults_of_asynchronous_runs() -> None:
    async def test(started: Started, answers: Answers) -> None:
        started.session.run_async([{"x": X}], answers.done)
        started.answer(fault="input", reason="no")
        await asyncio.sleep(0.01)
        started.session.run_async([{"x": X}], answers.done)
        started.answer()
        await asyncio.sleep(0.01)
        started.session.run_async([{"x": X}], answers.done)
        started.peer.close()
        await asyncio.sleep(0.01)
        assert answers.got == [
            "InvalidInputError: no",
            "PermanentError: its process gave 0 tensors for 1 runs with 1 outputs",
            "CrashError: the model crashed: its process was killed by SIGKILL; it is loaded again",
        ]
        assert not started.session.can_run_async()

    in_loop(test)


def test_an_input_that_cannot_be_sent_fails_its_run() -> None:
    async def test(started: Started, answers: Answers) -> None:
        wrong: Any = np.array(["text"])
        started.session.run_async([{"x": wrong}], answers.done)
        assert answers.got == []
        await asyncio.sleep(0.01)
        (answer,) = answers.got
        assert answer.startswith("CrashError: the model crashed: its process gave an invalid answer: a tensor of str")

    in_loop(test)


def test_the_process_is_killed_at_the_time_limit_of_each_run() -> None:
    async def test(started: Started, answers: Answers) -> None:
        for _ in range(3):
            started.session.run_async([{"x": X}], answers.done)
            await asyncio.sleep(6.0)
            started.answer(X)
            await asyncio.sleep(0.01)
        assert len(answers.got) == 3
        await asyncio.sleep(60.0)
        assert started.process.is_alive, "without a run there is no limit"
        started.session.run_async([{"x": X}], answers.done)
        await asyncio.sleep(9.9)
        assert len(answers.got) == 3
        await asyncio.sleep(0.2)
        assert answers.got[3:] == [
            "CrashError: the model crashed: its process took longer than 10 s and was ended; it is loaded again"
        ]
        assert not started.process.is_alive

    in_loop(test, run_limit_s=10.0)


def test_the_answer_of_an_emulated_device_is_read_when_it_is_due() -> None:
    async def test(started: Started, answers: Answers) -> None:
        loop = asyncio.get_running_loop()

        def call_at(at_s: float, callback: Callable[[], None]) -> None:
            loop.call_at(at_s, callback)

        finish = EmulatedFinish(call_at, loop.time() + 5.0)
        started.session.run_async([{"x": X}], answers.done, None, finish)
        started.answer(X)
        await asyncio.sleep(4.9)
        assert answers.got == []
        await asyncio.sleep(0.2)
        assert (len(answers.got), finish.is_late) == (1, False)
        late = EmulatedFinish(call_at, loop.time() + 5.0)
        started.session.run_async([{"x": X}], answers.done, None, late)
        await asyncio.sleep(7.0)
        assert (len(answers.got), late.is_late) == (1, True)
        started.answer(X)
        await asyncio.sleep(0.01)
        assert len(answers.got) == 2
        crashed = EmulatedFinish(call_at, loop.time() + 5.0)
        started.session.run_async([{"x": X}], answers.done, None, crashed)
        started.peer.close()
        await asyncio.sleep(5.1)
        assert answers.got[2].startswith("CrashError")

    in_loop(test, run_limit_s=60.0)


def test_a_process_that_is_closed_is_not_watched() -> None:
    async def test(started: Started, answers: Answers) -> None:
        started.session.run_async([{"x": X}], answers.done)
        started.process.stop_watching()
        started.answer(X)
        await asyncio.sleep(1.0)
        assert answers.got == []
        started.process.close()
        await asyncio.sleep(100.0)
        assert answers.got == []

    in_loop(test)
