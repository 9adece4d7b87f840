"""What a gateway keeps of a stream: chunks and a copy of its state, within bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean.serving.gateway.streams.stream import (
    COPY_BYTES,
    COPY_EVERY,
    KEPT_BYTES,
    KEPT_CHUNKS,
    Place,
    StateCopy,
    Stream,
)
from jellybean_agent import plan_view
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import make_plan, recurrent


@pytest.fixture
def place(tmp_path: Path) -> Place:
    operators = {"remember": (["x"], recurrent(tmp_path / "models/remember.onnx"))}
    states = {"remember": (("state", "state_next"),)}
    routes = [(0.5, {"remember": worker}) for worker in ("edge-1", "edge-2")]
    view = plan_view(make_plan(tmp_path, operators, routes, sources={"x": "edge"}, states=states))
    plan: Any = SimpleNamespace(view=view)
    found = Place.of(plan, 1)
    assert found.workers == (("remember", "edge-2"),)
    return found


def stream_of(place: Place, count: int, size: int = 4) -> Stream:
    """A stream of which so many chunks were answered, each of `size` bytes."""

    async def made() -> Stream:
        return Stream("key", "name", 0.0)

    stream = asyncio.run(made())
    for number in range(1, count + 1):
        stream.answered({"x": agent_pb2.Tensor(data=b"x" * size)}, {}, f"attempt-{number}", place)
    return stream


def kept(stream: Stream) -> list[int]:
    return [chunk.number for chunk in stream.recent]


def test_the_last_answer_is_where_the_stream_goes_on(place: Place) -> None:
    stream = stream_of(place, 3)
    assert (stream.number, stream.after, stream.place) == (3, "attempt-3", place)
    assert stream.code == place.code
    assert set(stream.code) == {"remember"}


def test_chunks_are_kept_within_bounds(place: Place) -> None:
    assert kept(stream_of(place, KEPT_CHUNKS)) == list(range(1, KEPT_CHUNKS + 1))
    assert kept(stream_of(place, KEPT_CHUNKS + 2)) == list(range(3, KEPT_CHUNKS + 3))
    assert kept(stream_of(place, 4, KEPT_BYTES // 4)) == [1, 2, 3, 4]
    assert kept(stream_of(place, 5, KEPT_BYTES // 4)) == [2, 3, 4, 5]
    assert kept(stream_of(place, 2, KEPT_BYTES + 1)) == [2]


def test_a_copy_is_needed_after_so_many_chunks_or_bytes(place: Place) -> None:
    assert not stream_of(place, COPY_EVERY - 1).needs_copy
    assert stream_of(place, COPY_EVERY).needs_copy
    assert not stream_of(place, 2, COPY_BYTES // 2 - 1).needs_copy
    stream = stream_of(place, 2, COPY_BYTES // 2)
    assert stream.needs_copy
    stream.keep_copy(StateCopy(1, "attempt-1"))
    assert not stream.needs_copy


def test_another_model_begins_with_the_chunks_before_the_copy(place: Place) -> None:
    stream = stream_of(place, COPY_EVERY + 4)
    copy = StateCopy(COPY_EVERY + 2, f"attempt-{COPY_EVERY + 2}")
    stream.keep_copy(copy)
    assert stream.copy is copy
    assert kept(stream) == list(range(5, COPY_EVERY + 5))
    late = stream_of(place, COPY_EVERY + 4)
    late.keep_copy(StateCopy(2, "attempt-2"))
    assert kept(late) == list(range(3, COPY_EVERY + 5))
