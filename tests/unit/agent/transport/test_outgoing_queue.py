"""The order in which messages leave, and the time that they have left."""

from __future__ import annotations

import math

from jellybean_agent import SharedLimit
from jellybean_agent.transport.outgoing_queue import OutgoingMessage, OutgoingQueue
from jellybean_protos.agent.v1 import agent_pb2


def made(queue: OutgoingQueue, name: str, due_s: float = 0.0, until_s: float = math.inf) -> OutgoingMessage:
    return queue.make(agent_pb2.Message(request_id=name), due_s, until_s, b"")


def failure(queue: OutgoingQueue, name: str) -> OutgoingMessage:
    return queue.make(agent_pb2.Message(request_id=name, failure=agent_pb2.Failure()), 5.0, math.inf, b"")


def names(messages: list[OutgoingMessage]) -> str:
    return "".join(outgoing.message.request_id for outgoing in messages)


def test_messages_leave_by_due_time_then_in_the_order_in_which_they_were_made() -> None:
    queue = OutgoingQueue(SharedLimit(100).share_of(""))
    assert (len(queue), queue.first_due_s) == (0, math.inf)
    messages = [made(queue, "a", 2.0), made(queue, "b", 1.0), failure(queue, "c"), made(queue, "d", 1.0)]
    for outgoing in reversed(messages):
        queue.push(outgoing)
    assert (len(queue), queue.first_due_s) == (4, -math.inf)
    assert names([queue.pop() for _ in range(4)]) == "cbda"
    queue.push_all(messages)
    assert names(queue.take_all()) == "cbda"
    assert len(queue) == 0
    assert [outgoing.needs_credit for outgoing in messages] == [True, True, False, True]


def test_messages_can_be_removed() -> None:
    queue = OutgoingQueue(SharedLimit(100).share_of(""))
    queue.push_all([made(queue, name, due_s) for name, due_s in (("a", 3.0), ("b", 1.0), ("a", 2.0), ("c", 4.0))])
    assert queue.remove(lambda outgoing: outgoing.message.request_id == "x") == 0
    assert queue.remove(lambda outgoing: outgoing.message.request_id == "a") == 2
    assert (queue.first_due_s, names(queue.take_all())) == (1.0, "bc")


def test_a_message_says_how_much_time_is_left() -> None:
    queue = OutgoingQueue(SharedLimit(100).share_of(""))
    limited, late, unlimited = made(queue, "a", until_s=10.0), made(queue, "b", until_s=7.0), made(queue, "c")
    assert [outgoing.set_time_left(7.0) for outgoing in (limited, late, unlimited)] == [True, False, True]
    assert [outgoing.message.left_s for outgoing in (limited, unlimited)] == [3.0, 0.0]
