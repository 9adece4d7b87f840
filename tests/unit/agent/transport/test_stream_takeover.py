"""Streams that move to a new connection at their age, in simulated time and without a loss."""

from __future__ import annotations

from pathlib import Path

from jellybean_agent import Transport
from tests.unit.agent.transport.timed_streams import Receiver, Sender, names, pause, with_receiver


class Aging(Transport):
    """A transport whose streams move to a new connection after ten seconds."""

    @property
    def stream_age_s(self) -> float | None:
        return 10.0


AGING = Aging("w", insecure=True)


def test_a_stream_moves_to_a_new_connection_at_its_age_without_a_loss(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, transport=AGING)
        sender.peer.start()
        sender.put(0)
        for number in range(1, 350):
            await pause(0.1)
            sender.put(number)
        await pause(1.0)
        assert receiver.got == names(*range(350))
        assert receiver.streams == 4
        assert sender.lost == []
        assert len(receiver.inboxes._open) == 1, "the old ones have ended"
        assert receiver.server is not None
        assert receiver.server.open_connections == 1
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_messages_go_the_old_way_until_the_new_connection_is_accepted(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, transport=AGING)
        sender.peer.start()
        sender.put(0)
        await pause()
        receiver.accepts_after_s = 3.0
        for number in range(1, 30):
            await pause(0.5)
            sender.put(number)
            await pause(0.01)
            assert receiver.got == names(*range(number + 1)), "none waits for the new connection"
        assert (receiver.streams, sender.lost) == (2, [])
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_a_stream_to_a_receiver_that_drains_stays(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, transport=AGING, eager=True)
        sender.peer.start()
        await pause()
        receiver.inboxes.announce_draining()
        await pause(60.0)
        assert receiver.streams == 1
        await sender.peer.close()

    with_receiver(tmp_path, test)


def test_a_new_connection_that_is_not_accepted_ends_the_old_one_too(tmp_path: Path) -> None:
    async def test(receiver: Receiver) -> None:
        sender = Sender(receiver, transport=AGING)
        sender.peer.start()
        sender.put(1)
        await pause()
        receiver.is_silent = True
        await pause(9.9)
        assert sender.lost == []
        await pause(11.0)
        assert [messages for _, _, messages in sender.lost] in ([[]], [[], []])
        assert "nothing was heard" in sender.lost[0][1] or "takes no new connection" in sender.lost[0][1]
        assert receiver.server is not None
        assert receiver.server.calls_in_progress <= 1, "neither the old nor the failed new one is left open"
        await sender.peer.close()

    with_receiver(tmp_path, test)
