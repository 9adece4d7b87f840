"""Operators with a state: every stream's answers are those of one process, whatever happens to workers and plans."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Chunk, Client, LaunchSettings, NotRunningError, RequestError, read_state
from jellybean.serving.local import launcher, replace_plan
from jellybean.serving.local.running import down
from jellybean_solver.model.plan_document import Document
from tests.support.stream_load import StreamLoad
from tests.support.streams_project import uninterrupted
from tests.support.tiny_models import make_plan, recurrent, scale
from tests.support.waiting import wait_until

REPLICAS = ("cloud-1", "cloud-2", "cloud-3")
DECAY = 0.9
STATE = {"remember": (("state", "state_next"),)}
few_and_many = pytest.mark.parametrize(
    ("streams", "chunks"), [(20, 60), pytest.param(200, 60, marks=pytest.mark.nightly)]
)


def plan(root: Path, workers: Sequence[str], decay: float = DECAY) -> Document:
    """A stateless operator, then one with a state on each of some workers."""
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "remember": (["double"], recurrent(root / "models/remember.onnx", decay)),
    }
    routes = [(1 / len(workers), {"double": "edge-1", "remember": name}) for name in workers]
    return make_plan(root, operators, routes, sources={"x": "edge"}, states=STATE, batch=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("streams")
    launcher.up(root, plan(root, REPLICAS), LaunchSettings(port=0, insecure=True))
    yield root
    down(root, timeout_s=1.0)
    with pytest.raises(NotRunningError):
        Client.of(root)


def pid(directory: Path, name: str) -> int:
    state = read_state(directory)
    assert state is not None
    return next(process.pid for process in state.processes if process.name == name)


def inputs_of(stream: int, chunks: int) -> np.ndarray:
    return np.random.default_rng(stream).normal(size=(chunks, 1, 4)).astype(np.float32)


@few_and_many
def test_streams_outlive_a_kill_a_drain_and_another_plan(directory: Path, streams: int, chunks: int) -> None:
    replace_plan.apply(directory, plan(directory, REPLICAS))
    with Client.of(directory) as client:
        wait_until(lambda: client.status().state == "ready")
        before = client.status()

        def away(name: str, number: signal.Signals) -> None:
            os.kill(pid(directory, name), number)
            wait_until(lambda: client.status().workers[name] != "ready")

        inputs = [inputs_of(number, chunks) for number in range(streams)]
        load = StreamLoad(client.address, "x", "remember", inputs)
        asyncio.run(
            load.run(
                lambda: away("cloud-1", signal.SIGKILL),
                lambda: away("cloud-2", signal.SIGTERM),
                lambda: replace_plan.apply(directory, plan(directory, ("cloud-3", "cloud-4"))),
            )
        )
        for sent, answers in zip(inputs, load.answers, strict=True):
            np.testing.assert_allclose(np.concatenate(answers), uninterrupted(sent), atol=1e-6)
        after = client.status()
        assert (after.answered - before.answered, after.failed) == (streams * chunks, before.failed)


def test_what_a_request_says_of_its_stream_is_checked(directory: Path) -> None:
    x = np.ones((1, 4), np.float32)

    def refusal(chunk: Chunk | None) -> str:
        with pytest.raises(RequestError) as error:
            client.infer({"x": x}, chunk=chunk)
        return f"{error.value.status} {error.value.reason}"

    with Client.of(directory) as client:
        wait_until(lambda: client.status().state == "ready")
        assert refusal(None) == (
            "INVALID_ARGUMENT remember keeps a state by stream: say which stream this is, and that it begins"
        )
        assert refusal(Chunk("", begins=True)) == "INVALID_ARGUMENT a stream's id has 1 to 256 bytes, not 0"
        assert refusal(Chunk("s" * 257, begins=True)) == "INVALID_ARGUMENT a stream's id has 1 to 256 bytes, not 257"
        assert "NOT_FOUND stream 'unknown' is not known: it was not begun, has ended," in refusal(Chunk("unknown"))
        (first,) = client.infer({"x": x}, chunk=Chunk("numbered", begins=True, number=1)).values()
        (again,) = client.infer({"x": 5 * x}, chunk=Chunk("numbered", number=1)).values()
        assert again.tolist() == first.tolist()
        assert refusal(Chunk("numbered", number=3)) == (
            "INVALID_ARGUMENT stream 'numbered': chunk 3 came, chunk 2 is next: send that first"
        )
        (second,) = client.infer({"x": x}, chunk=Chunk("numbered", ends=True)).values()
        np.testing.assert_allclose(second, uninterrupted(np.stack([x, x]))[1:], atol=1e-6)
        assert "NOT_FOUND" in refusal(Chunk("numbered"))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [10, 100])
def test_a_plan_with_another_model_names_the_chunks_that_are_lost(directory: Path, chunks: int) -> None:
    """The last 16 to 64 chunks are run anew by the other model, more while no copy was made; fewer lose nothing."""
    replace_plan.apply(directory, plan(directory, ("cloud-1",)))
    inputs, other, first = inputs_of(7, chunks + 2), 0.5, 1
    with Client.of(directory) as client:
        for index, x in enumerate(inputs[:chunks]):
            client.infer({"x": x}, chunk=Chunk("one", begins=index == 0))
        replace_plan.apply(directory, plan(directory, ("cloud-1",), other))
        if chunks > 16:
            with pytest.raises(RequestError) as error:
                client.infer({"x": inputs[-2]}, chunk=Chunk("one"))
            first = int(error.value.reason.partition("anew from chunks ")[2].partition(" ")[0])
            assert (error.value.status, error.value.reason) == (
                "DATA_LOSS",
                f"stream 'one': its state was made anew from chunks {first} to {chunks}; chunks 1 to {first - 1} are "
                f"lost to it. Chunk {chunks + 1} was not run: send it again, or begin the stream anew",
            )
            assert 1 < first <= chunks - 15
        answers = [client.infer({"x": x}, chunk=Chunk("one"))["remember"] for x in inputs[-2:]]
    np.testing.assert_allclose(np.concatenate(answers), uninterrupted(inputs[first - 1 :], other)[-2:], atol=1e-6)
