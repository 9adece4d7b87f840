"""Credit of message streams in simulated time: its bounds, its lots, and heartbeats."""

from __future__ import annotations

from pathlib import Path

from jellybean_agent import SharedLimit
from jellybean_agent.transport.inboxes import HEARTBEAT_S, INITIAL_CREDIT
from jellybean_protos.agent.v1 import agent_pb2
from tests.unit.agent.transport.timed_streams import Receiver, Sender, names, pause, with_receiver


def test_credit_bounds_what_is_sent_and_acknowledges_it_in_lots(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, resends=True)
        sender.peer.start()
        receiver.is_full = True
        sender.put(*range(INITIAL_CREDIT + 5))
        await pause()
        assert receiver.got == names(*range(INITIAL_CREDIT))
        assert sender.peer.queued == INITIAL_CREDIT + 5, "none is acknowledged"
        sender.put_failure(99)
        await pause()
        assert receiver.got[-1] == "99", "failures need no credit"
        receiver.is_full = False
        receiver.inboxes.has_capacity("another workflow")
        await pause()
        assert sender.peer.queued == INITIAL_CREDIT + 5
        receiver.inboxes.has_capacity()
        await pause()
        assert receiver.got[-5:] == names(*range(INITIAL_CREDIT, INITIAL_CREDIT + 5))
        assert sender.peer.queued == 5
        assert [credit.messages for credit in sender.credits if credit.messages] == [INITIAL_CREDIT, INITIAL_CREDIT]
        await pause(HEARTBEAT_S)
        assert sender.peer.queued == 0, "a heartbeat acknowledges the others"
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_credit_is_granted_in_lots_of_sixteen(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(0)
        await pause()
        sender.credits.clear()
        sender.put(*range(1, 15))
        await pause()
        assert sender.credits == []
        sender.put(15)
        await pause()
        assert [credit.messages for credit in sender.credits] == [16]
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_a_heartbeat_comes_each_half_second_without_other_credit(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, eager=True)
        sender.peer.start()
        await pause()
        sender.credits.clear()
        await pause(10 * HEARTBEAT_S)
        assert [credit.messages for credit in sender.credits] == [0] * 10
        sender.credits.clear()
        for number in range(40):  # as much credit as comes does for heartbeats
            sender.put(*range(16 * number, 16 * number + 16))
            await pause(HEARTBEAT_S / 4)
        assert len(sender.credits) in (40, 41)
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_what_waits_for_a_receiver_without_credit_is_bounded(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        receiver.is_silent = True
        sender = Sender(receiver, queued_bytes=SharedLimit(1000))
        sender.peer.start()
        for number in range(4):
            sender.peer.put(agent_pb2.Message(request_id=str(number)), data=bytes(400))
        await pause()
        reason = "it takes no messages: 800 bytes wait for it"
        assert sender.lost == [("b-1", reason, ["2"]), ("b-1", reason, ["3"])]
        assert sender.peer.queued == 2
        sender.peer.forget("0")
        sender.peer.put(agent_pb2.Message(request_id="4"), data=bytes(400))
        await pause()
        assert sender.peer.queued == 2
        await sender.peer.close()

    with_receiver(tmp_path, test)
