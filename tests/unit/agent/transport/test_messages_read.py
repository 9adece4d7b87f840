"""Messages from the wire: paths, deadlines and places that a plan does not have."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from jellybean_agent import (
    EdgeMessage,
    Inboxes,
    InvalidInputError,
    StatusError,
    StreamPosition,
    encode_tensor,
    plan_view,
    read_fan_out_path,
)
from jellybean_agent.brain.messages import MAX_CHILDREN
from jellybean_agent.transport.inboxes import StreamSource
from jellybean_agent.transport.message_wire import (
    MAX_LEFT_S,
    message_parts,
    read_message,
    split_message,
    varint,
    write_message,
)
from jellybean_protos.agent.v1 import agent_pb2
from tests.unit.agent.brain.test_plan_view import make_document

VIEW = plan_view(make_document())
HERE = ("split", "each", "sum")
X = np.arange(4, dtype=np.float32).reshape(1, 4)


def wire(**content: Any) -> agent_pb2.Message:
    standard = {"request_id": "r", "upstream": "x", "downstream": "split", "tensor": encode_tensor(X)}
    return agent_pb2.Message(**{**standard, **content})


def path(*positions: tuple[int, int]) -> list[agent_pb2.Position]:
    return [agent_pb2.Position(index=index, count=count) for index, count in positions]


def test_a_message_is_read_with_its_deadline_and_its_place_in_a_stream() -> None:
    found = read_message(VIEW, HERE, wire(left_s=2.5, stream="s", after="before", route=1), 100.0)
    assert (found.request, found.route, found.upstream, found.downstream, found.path) == ("r", 1, "x", "split", ())
    assert (found.until, found.position) == (102.5, StreamPosition("s", "before"))
    assert found.payload.tolist() == X.tolist()
    assert read_message(VIEW, HERE, wire(), 100.0).position is None


@pytest.mark.parametrize(
    ("left_s", "until_s"),
    [(0.0, MAX_LEFT_S), (-1.0, MAX_LEFT_S), (math.nan, MAX_LEFT_S), (1e9, MAX_LEFT_S), (3599.0, 3599.0)],
)
def test_no_message_is_kept_longer_than_an_hour(left_s: float, until_s: float) -> None:
    assert read_message(VIEW, HERE, wire(left_s=left_s), 100.0).until == 100.0 + until_s


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"downstream": "nobody"}, "no operator 'nobody' on route 0 here"),
        ({"route": 2}, "no operator 'split' on route 2 here"),
        ({"upstream": "each"}, "split has no input from 'each'"),
        ({"path": path((0, 1))}, "1 open fan-outs in the path; the plan has 0"),
        ({"upstream": "split", "downstream": "each"}, "0 open fan-outs in the path; the plan has 1"),
        ({"upstream": "split", "downstream": "each", "path": path((3, 3))}, "child 3 of 3 in the path"),
        ({"upstream": "split", "downstream": "each", "path": path((1, 0))}, "child 1 of 0 in the path"),
        (
            {"upstream": "split", "downstream": "each", "path": path((0, MAX_CHILDREN + 1))},
            f"child 0 of {MAX_CHILDREN + 1} in the path",
        ),
    ],
)
def test_messages_that_do_not_fit_the_plan(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        read_message(VIEW, HERE, wire(**content), 0.0)


def test_an_operator_of_another_worker_is_not_here() -> None:
    with pytest.raises(InvalidInputError, match="no operator 'split' on route 0 here"):
        read_message(VIEW, ("each",), wire(), 0.0)


def test_a_fan_out_without_children_has_no_tensor() -> None:
    empty = wire(upstream="split", downstream="each", path=path((0, 0)))
    empty.ClearField("tensor")
    assert read_message(VIEW, HERE, empty, 0.0).payload is None
    assert read_fan_out_path(wire(path=path((0, MAX_CHILDREN))), 1) == ((0, MAX_CHILDREN),)


def test_what_is_written_is_read_and_large_tensors_are_not_copied() -> None:
    for size in (1, 2**14, 2**15):
        array = np.arange(size, dtype=np.float32).reshape(1, size)
        message = EdgeMessage("r", 1, "split", "each", ((1, 3),), array, position=StreamPosition("s", "b"))
        head, data = write_message("plan", message)
        assert head.plan == "plan"
        whole = b"".join(bytes(part) for part in message_parts(head, data))
        parsed, apart = split_message(whole)
        assert (len(apart) > 0) == (4 * size >= 2**16)
        found = read_message(VIEW, HERE, parsed, 0.0, apart)
        assert (found.path, found.position) == (message.path, message.position)
        assert np.array_equal(found.payload, array)
    none = write_message("plan", EdgeMessage("r", 0, "split", "each", ((0, 0),)))
    assert (none[1], none[0].HasField("tensor")) == (b"", False)


@pytest.mark.parametrize(
    ("number", "octets"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001")],
)
def test_numbers_of_any_size(number: int, octets: str) -> None:
    assert varint(number).hex() == octets


def test_large_bytes_without_a_tensor_at_their_end_are_read_as_a_whole() -> None:
    for content in ({"request_id": "r" * 70_000}, {"plan": "p" * 70_000, "tensor": encode_tensor(X)}):
        data = agent_pb2.Message(**content).SerializeToString()
        parsed, apart = split_message(data)
        assert (parsed.SerializeToString(), apart) == (data, b"")


def test_streams_are_of_a_workflow_that_is_served() -> None:
    async def run() -> None:
        several = Inboxes(lambda _: None, lambda _: False, workflows=("shop", "yard"))
        inbox = several.open(StreamSource("a-1", "shop"), lambda _: None, lambda _: None)
        inbox.close()
        with pytest.raises(StatusError, match="of workflow 'other' are not taken here: served are shop, yard"):
            several.open(StreamSource("a-1", "other"), lambda _: None, lambda _: None)
        single = Inboxes(lambda _: None, lambda _: False)
        with pytest.raises(StatusError, match="of workflow 'shop' are not taken here: served are one only"):
            single.open(StreamSource("a-1", "shop"), lambda _: None, lambda _: None)

    asyncio.run(run())
