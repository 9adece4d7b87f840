"""Both ends of message streams in simulated time over real Unix sockets: credit, acknowledgement, loss, takeover."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jellybean_agent import (
    DELIVER_METHOD,
    Inboxes,
    InvalidInputError,
    OpenPolicy,
    Peer,
    PeerSettings,
    RpcServer,
    Transport,
    agent_service_handler,
    make_server,
)
from jellybean_agent.transport.inboxes import HEARTBEAT_S, INITIAL_CREDIT
from jellybean_agent.transport.streams import CONNECT_S, SILENT_S
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.simulated_time import run_in_simulated_time

PLAIN = Transport("w", insecure=True)


class Receiver:
    """A process that messages are delivered to. `is_silent`: it takes streams, and says nothing."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.got: list[str] = []
        self.left_s: list[float] = []
        self.is_full = self.is_silent = False
        self.accepts_after_s = 0.0  # a stream gets no credit before
        self.streams = 0
        self.inboxes = Inboxes(self._take, lambda _: self.is_full)
        self.server: RpcServer | None = None

    async def start(self) -> None:
        self.server = make_server(OpenPolicy())
        self.server.add_generic_rpc_handlers((agent_service_handler(),))
        self.server.add_raw_stream(DELIVER_METHOD, self._deliver)
        PLAIN.bind(self.server, self.address)
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(0.0)
            self.server = None

    def _deliver(self, call: Any) -> Any:
        self.streams += 1
        if self.accepts_after_s:
            return _Late(self, call)
        return _Silence() if self.is_silent else self.inboxes.deliver_raw(call)

    def _take(self, message: agent_pb2.Message) -> None:
        if message.upstream == "wrong":
            raise InvalidInputError("that is wrong")
        self.got.append(message.request_id)
        self.left_s.append(message.left_s)


class _Silence:
    def receive(self, message: bytes) -> None:
        pass

    def end_of_requests(self) -> None:
        pass


class _Late:
    """A stream that is served after a while."""

    def __init__(self, receiver: Receiver, call: Any) -> None:
        self._receiver, self._call, self._inbox = receiver, call, None
        asyncio.get_running_loop().call_later(receiver.accepts_after_s, self._accept)

    def _accept(self) -> None:
        inbox: Any = self._receiver.inboxes.deliver_raw(self._call)
        self._inbox = inbox

    def receive(self, message: bytes) -> None:
        assert self._inbox is not None, "there was no credit"
        self._inbox.receive(message)

    def end_of_requests(self) -> None:
        if self._inbox is not None:
            self._inbox.end_of_requests()


class Sender:
    """A peer, and what it has reported."""

    def __init__(self, receiver: Receiver, **settings: Any) -> None:
        self.lost: list[tuple[str, str, list[str]]] = []
        self.credits: list[agent_pb2.Credit] = []
        self.peer = Peer(
            "b-1",
            receiver.address,
            PeerSettings("a-1", settings.pop("transport", PLAIN), **settings),
            on_lost=self._note_loss,
            on_credit=lambda _name, credit: self.credits.append(credit),
        )

    def _note_loss(self, name: str, reason: str, messages: Sequence[agent_pb2.Message]) -> None:
        self.lost.append((name, reason, [message.request_id for message in messages]))

    def put(self, *requests: int, due_s: float = 0.0, until_s: float = math.inf, upstream: str = "") -> None:
        for request in requests:
            tensor = agent_pb2.Tensor(dtype="uint8", shape=[2], data=b"xy")
            message = agent_pb2.Message(request_id=str(request), upstream=upstream, downstream="op", tensor=tensor)
            self.peer.put(message, due_s, until_s)

    def put_failure(self, request: int) -> None:
        self.peer.put(agent_pb2.Message(request_id=str(request), failure=agent_pb2.Failure(reason="it failed")))


def names(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def with_receiver(folder: Path, test: Callable[[Receiver], Awaitable[None]], *, starts: bool = True) -> None:
    async def run() -> None:
        receiver = Receiver(folder / "b-1")
        if starts:
            await receiver.start()
        try:
            await test(receiver)
        finally:
            await receiver.stop()

    folder.chmod(0o700)
    run_in_simulated_time(run)


async def pause(seconds: float = 0.05) -> None:
    await asyncio.sleep(seconds)


def now_s() -> float:
    return asyncio.get_running_loop().time()


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
