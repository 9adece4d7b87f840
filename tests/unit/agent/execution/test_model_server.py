"""Both ends of the conversation with a model process, the process's own loop in a thread of this one."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from jellybean_agent import (
    CPU,
    AgentError,
    InvalidInputError,
    ModelError,
    PermanentError,
    PythonStep,
    TensorPort,
    find_module_source,
)
from jellybean_agent.errors import RefusedValuesError
from jellybean_agent.execution import process_main
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_wire import MAX_OUTPUT_BYTES, Conversation, SharedMemory
from jellybean_agent.execution.python_session import PythonSession
from tests.support.tiny_models import save, scale


class ThreadPool:
    """Serves models in threads of this process, which has its limits already."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def new_process(self) -> tuple[Conversation, int]:
        mine, other = socket.socketpair()
        file = os.memfd_create("test")
        conversation = Conversation(other, SharedMemory(os.dup(file)))

        def serve() -> None:
            process_main._serve_models(conversation, 10**9)
            conversation.close()

        self.threads.append(threading.Thread(target=serve, daemon=True))
        self.threads[-1].start()
        return Conversation(mine, SharedMemory(file)), 4711

    def end_process(self, _pid: int) -> int:
        for thread in self.threads:
            thread.join(10)
        return 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelProcess]:
    monkeypatch.setattr(process_main, "limit_memory", lambda _: None)
    monkeypatch.setattr(process_main.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(process_main.gc, "freeze", lambda: None)
    pool: Any = ThreadPool()
    found = ModelProcess(pool)
    yield found
    found.close()


X = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)


def test_models_are_loaded_and_run(process: ModelProcess, tmp_path: Path) -> None:
    sessions = []
    for name, factor in (("double", 2.0), ("triple", 3.0)):
        path = tmp_path / f"models/{name}.onnx"
        sessions.append(process.open(path, scale(path, factor), CPU))
    assert sessions[0].inputs == (TensorPort("x", "float32", (-1, 4)),)
    assert sessions[0].outputs == (TensorPort("y", "float32", (-1, 4)),)
    for _ in range(3):
        assert [session.run({"x": X})[0].tolist() for session in sessions] == [(X * 2).tolist(), (X * 3).tolist()]
    two = np.concatenate([X, X])
    assert sessions[0].run({"x": two})[0].tolist() == (two * 2).tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256": "0" * 64}, "the plan says 000000000000...: it was altered"),
        ({"path": "none.onnx"}, "there is no such file or folder"),
    ],
)
def test_models_that_cannot_be_loaded(
    process: ModelProcess, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    sha256 = scale(tmp_path / "m.onnx", 2.0)
    with pytest.raises(ModelError, match=reason):
        process.open(tmp_path / change.get("path", "m.onnx"), change.get("sha256", sha256), CPU)
    assert process.open(tmp_path / "m.onnx", sha256, CPU).run({"x": X})[0][0, 0] == 2.0


def test_the_kind_of_a_fault_passes(process: ModelProcess, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Cast", ["x"], ["at"], to=7), helper.make_node("Gather", ["table", "at"], ["y"], axis=0)]
    sha256 = save(path, nodes, {"x": ["n"]}, ("y", ["n"]), table=np.arange(3, dtype=np.float32))
    session = process.open(path, sha256, CPU)
    with pytest.raises(RefusedValuesError, match="indices element out of data bounds"):
        session.run({"x": np.array([9.0], np.float32)})
    with pytest.raises(PermanentError) as failed:
        session.run({"w": np.array([1.0], np.float32)})
    assert not isinstance(failed.value, InvalidInputError)
    assert session.run({"x": np.array([2.0], np.float32)})[0].tolist() == [2.0]
    huge = process.open(path, sha256, CPU)
    with pytest.raises(AgentError):
        huge.run({"x": np.broadcast_to(np.float32(0), (MAX_OUTPUT_BYTES,))})


MODULE = '''
"""Steps of a test."""

import sys
import numpy as np
from jellybean_agent.errors import InvalidInputError
from jellybean_agent.steps import step

NAME = sys.modules[__name__].__name__


@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))})
def behave(inputs, *, how="ok"):
    x = inputs["x"]
    if how == "writes":
        x[0, 0] = 9.0
    if how == "refuses":
        raise InvalidInputError("negative values")
    if how == "raises":
        raise KeyError("absent")
    if how == "exits":
        sys.exit("the end")
    if how == "memory":
        raise MemoryError
    if how == "list":
        return {"y": [1.0]}
    if how == "number":
        return 5
    if how == "other":
        return {"z": x}
    if how == "shape":
        return {"y": np.zeros((1, 5), np.float32)}
    if how == "dtype":
        return {"y": x.astype(np.float64)}
    return {"y": x if how == "view" else x * 2}


not_callable = 5
'''


@pytest.fixture
def behave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of steps, by its sha256."""
    (tmp_path / "steps_of_a_test.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield find_module_source("steps_of_a_test").sha256
    sys.modules.pop("steps_of_a_test", None)


def step(how: str) -> PythonStep:
    return PythonStep("steps_of_a_test:behave", f'{{"how": "{how}"}}', frozenset({"steps_of_a_test:behave"}))


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ("refuses", InvalidInputError, "negative values"),
        ("raises", PermanentError, "KeyError: 'absent'"),
        ("exits", PermanentError, "it asked the process to end"),
        ("writes", PermanentError, "ValueError: assignment destination is read-only"),
        ("list", PermanentError, "output y is a list, not an array"),
        ("number", PermanentError, "it declares outputs y, and gave int"),
        ("other", PermanentError, "it declares outputs y, and gave z"),
        ("shape", PermanentError, "output y: "),
        ("dtype", PermanentError, "output y: "),
        ("memory", PermanentError, "out of memory: 1000000000 bytes are the limit"),
    ],
)
def test_steps_that_fail(process: ModelProcess, behave: str, how: str, kind: type[AgentError], reason: str) -> None:
    session = process.open(step(how), behave, CPU)
    with pytest.raises(kind, match=reason) as failed:
        session.run({"x": X})
    assert type(failed.value) is kind
    assert process.open(step("ok"), behave, CPU).run({"x": X})[0].tolist() == (X * 2).tolist()


def test_outputs_are_no_views_of_inputs(behave: str) -> None:
    (output,) = PythonSession(step("view"), behave).run({"x": X})
    assert not np.may_share_memory(output, X)
    assert PythonSession(step("ok"), behave).run({"x": X})[0].tolist() == (X * 2).tolist()


def test_a_module_is_known_by_its_name_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps_by_name.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = "steps_by_name:behave"
    sha256 = find_module_source("steps_by_name").sha256
    PythonSession(PythonStep(function, "{}", frozenset({function})), sha256)
    assert sys.modules.pop("steps_by_name").NAME == "steps_by_name"


def test_what_is_no_function_of_the_module(behave: str, tmp_path: Path) -> None:
    for name in ("none", "not_callable"):
        function = f"steps_of_a_test:{name}"
        with pytest.raises(ModelError):
            PythonSession(PythonStep(function, "{}", frozenset({function})), behave)
    with pytest.raises(ModelError):
        PythonSession(step("ok"), "0" * 64)


def test_a_module_that_fails_to_load_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MODULE + "\nraise OSError('no camera')\n"
    (tmp_path / "steps_that_fail.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    sha256 = find_module_source("steps_that_fail").sha256
    function = "steps_that_fail:behave"
    with pytest.raises(ModelError, match="module steps_that_fail cannot be loaded: OSError: no camera"):
        PythonSession(PythonStep(function, "{}", frozenset({function})), sha256)
    assert "steps_that_fail" not in sys.modules
