"""Loss of message streams in simulated time: silence, refused messages, and what is lost or sent again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jellybean_agent.transport.streams import CONNECT_S, SILENT_S
from tests.unit.agent.transport.timed_streams import Receiver, Sender, names, now_s, pause, with_receiver


def test_a_receiver_that_says_nothing_is_lost_with_what_it_got(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(1, 2)
        await pause()
        began_s = now_s()
        for inbox in list(receiver.inboxes._open):
            assert inbox.heartbeat is not None
            inbox.heartbeat.cancel()
        while not sender.lost:
            await pause(0.01)
        assert SILENT_S - 0.3 < now_s() - began_s < SILENT_S + 0.3
        ((name, reason, messages),) = sender.lost
        assert (name, messages) == ("b-1", names(1, 2))
        assert reason.startswith("nothing was heard from it for 2.")
        assert not sender.peer.connected
        sender.put(3)
        await pause(0.2)
        assert receiver.got == names(1, 2, 3), "a new stream is opened"
        assert len(sender.lost) == 1
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_a_receiver_that_never_grants_credit_is_given_up_after_the_time_to_connect(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        receiver.is_silent = True
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(1)
        await pause(CONNECT_S - 0.1)
        assert sender.lost == []
        assert not sender.peer.connected
        await pause(0.6)
        ((_, reason, messages),) = sender.lost
        assert (reason[:32], messages) == ("nothing was heard from it for 5.", names(1))
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_time_in_which_this_process_stood_still_is_not_silence(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, eager=True)
        sender.peer.start()
        await pause()
        loop: Any = asyncio.get_running_loop()
        for inbox in list(receiver.inboxes._open):
            assert inbox.heartbeat is not None
            inbox.heartbeat.cancel()
        loop._clock.now_s += 30.0  # the process is suspended
        await pause(1.0)
        assert sender.lost == []
        await pause(1.5)
        assert len(sender.lost) == 1
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_what_may_not_have_arrived_is_lost_or_sent_again(tmp_path: Path) -> None:
    for resends in (False, True):

        async def test(receiver: Receiver, resends: bool = resends) -> None:
            sender = Sender(receiver, resends=resends)
            sender.peer.start()
            sender.put(*range(20))
            await pause()
            assert sender.peer.queued == (4 if resends else 0), "sixteen are acknowledged"
            later_s = now_s() + 60.0
            sender.put(20, due_s=later_s)
            await receiver.stop()
            await pause()
            assert sender.lost[0][2] == ([] if resends else names(16, 17, 18, 19, 20))
            assert sender.peer.queued == (5 if resends else 0)
            receiver.got.clear()
            await receiver.start()
            await pause(1.0)
            assert receiver.got == (names(16, 17, 18, 19) if resends else [])
            await sender.peer.close()

        with_receiver(tmp_path, test)


def test_a_message_that_is_refused_ends_the_stream_with_the_reason(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver)
        sender.peer.start()
        sender.put(1)
        sender.put(2, upstream="wrong")
        await pause()
        assert sender.lost == [("b-1", "that is wrong", names(1, 2))]
        sender.put(3)
        await pause(0.2)
        assert receiver.got == names(1, 3)
        assert receiver.inboxes.senders() == {"a-1"}
        await sender.peer.close()

    with_receiver(tmp_path, test)


@pytest.mark.parametrize("resends", [False, True])
def test_without_a_receiver_messages_are_lost_or_wait(tmp_path: Path, resends: bool) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, resends=resends)
        sender.peer.start()
        sender.put(1, 2)
        await pause(1.05)
        if resends:
            assert sender.peer.queued == 2
            assert [messages for _, _, messages in sender.lost] == [[]] * len(sender.lost)
            assert 8 <= len(sender.lost) <= 12
        else:
            assert sender.peer.queued == 0
            assert [messages for _, _, messages in sender.lost] == [names(1, 2)]
        await receiver.start()
        await pause(0.2)
        assert receiver.got == (names(1, 2) if resends else [])
        await sender.peer.close()

    with_receiver(tmp_path, test, starts=False)
