"""Message streams of a peer in simulated time: opened, in order of due times, drained, ended and closed."""

from __future__ import annotations

import math
from pathlib import Path

from tests.unit.agent.transport.timed_streams import Receiver, Sender, names, now_s, pause, with_receiver


def test_a_stream_is_opened_with_the_first_message_and_kept(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        await pause(5.0)
        assert (receiver.streams, sender.peer.connected) == (0, False)
        sender.put(1, 2)
        sender.put_failure(3)
        assert sender.peer.queued == 3
        await pause()
        assert receiver.got == names(3, 1, 2), "a failure goes first"
        assert sender.peer.connected
        assert sender.peer.queued == 0
        sender.put(4)
        assert sender.peer.queued == 0, "it may be sent at once"
        await pause(60.0)
        assert receiver.got == names(3, 1, 2, 4)
        assert (receiver.streams, sender.lost) == (1, [])
        await sender.peer.close()
        await pause()
        assert receiver.inboxes.senders() == frozenset()

    with_receiver(tmp_path, test)


def test_an_eager_peer_opens_its_stream_at_once_and_again_after_a_loss(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, eager=True)
        sender.peer.start()
        await pause()
        assert receiver.inboxes.senders() == {"a-1"}
        await receiver.stop()
        await pause(1.0)
        assert not sender.peer.connected
        assert sender.lost[0][1] == "the server is shutting down"
        assert all(reason.startswith("cannot connect to ") for _, reason, _ in sender.lost[1:])
        assert 5 <= len(sender.lost) <= 12, "ten attempts in a second"
        await receiver.start()
        await pause(0.2)
        assert sender.peer.connected
        assert receiver.inboxes.senders() == {"a-1"}
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_messages_leave_in_the_order_of_their_due_times_and_not_before(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(0)
        await pause()
        began_s = now_s()
        sender.put(1, due_s=began_s + 2.0)
        sender.put(2, due_s=began_s + 1.0)
        sender.put(3, due_s=began_s + 2.0)
        sender.put(4, due_s=began_s + 3.0, until_s=began_s + 2.5)
        sender.put(5, due_s=began_s + 1.0, until_s=began_s + 9.0)
        sender.put(6, due_s=began_s - 1.0)
        await pause(0.9)
        assert receiver.got == names(0, 6)
        await pause(0.2)
        assert receiver.got == names(0, 6, 2, 5)
        assert 7.8 < receiver.left_s[-1] <= 8.0
        assert receiver.left_s[-2] == 0.0
        await pause(1.0)
        assert receiver.got[4:] == names(1, 3)
        await pause(1.0)
        assert receiver.got[6:] == []
        assert (sender.peer.expired, sender.peer.queued) == (1, 0)
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_what_is_queued_can_expire_or_be_forgotten(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(0)
        await pause()
        began_s = now_s()
        for number, until_s in ((1, 5.0), (2, 6.0), (3, math.inf)):
            sender.put(number, due_s=began_s + 10.0, until_s=began_s + until_s)
        sender.peer.forget("nobody")
        assert sender.peer.queued == 3
        sender.peer.expire(began_s + 5.0)
        assert (sender.peer.queued, sender.peer.expired) == (2, 1)
        sender.peer.forget("2")
        assert (sender.peer.queued, sender.peer.expired) == (1, 1)
        sender.put(4, until_s=began_s - 1.0)
        assert (sender.peer.queued, sender.peer.expired) == (1, 2), "it was too late at once"
        await pause(10.1)
        assert receiver.got == names(0, 3)
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_the_end_of_a_peer_sends_the_queue_and_half_closes(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(1)
        await pause()
        sender.put(2, due_s=now_s() + 1.0)
        sender.peer.end()
        await pause(0.9)
        assert receiver.inboxes.senders() == {"a-1"}
        await pause(0.2)
        assert receiver.got == names(1, 2)
        assert receiver.inboxes.senders() == frozenset()
        await pause(5.0)
        assert (receiver.streams, sender.lost) == (1, [])
        assert not sender.peer.connected
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_an_eager_peer_that_finishes_comes_again_after_a_pause(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, eager=True)
        sender.peer.start()
        await pause()
        sender.peer.finish()
        await pause(0.4)
        assert sender.lost == [("b-1", "it left", [])]
        assert receiver.inboxes.senders() == frozenset()
        await pause(0.2)
        assert receiver.inboxes.senders() == {"a-1"}
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_a_receiver_that_drains_says_so_to_all_its_senders(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        senders = [Sender(receiver, eager=True), Sender(receiver, eager=True)]
        for sender in senders:
            sender.peer.start()
        await pause()
        assert not any(credit.draining for sender in senders for credit in sender.credits)
        receiver.inboxes.announce_draining()
        await pause()
        assert all(sender.credits[-1].draining for sender in senders)
        for sender in senders:
            await sender.peer.close()

    with_receiver(tmp_path, test)


def test_the_close_of_a_peer_drops_all_and_ends_its_streams(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(1)
        await pause()
        sender.put(2, due_s=now_s() + 60.0)
        await sender.peer.close()
        await pause(1.0)
        assert receiver.got == names(1)
        assert receiver.inboxes.senders() == frozenset()
        assert receiver.server is not None
        assert receiver.server.calls_in_progress == 0
        assert sender.lost == []

    with_receiver(tmp_path, test)
