"""The time of a peer at the event loop: shared by its connections, and given back with each turn of the loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from jellybean_agent import Admission, SharedLimit
from jellybean_agent.admission.turns import TURN_S, PeerTurn, PeerTurns
from jellybean_agent.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from jellybean_agent.rpc.hpack import encode_headers
from tests.support.http2_client import ECHO, CallServer, Http2Client, content, greeted_client, settle
from tests.support.simulated_time import run_in_simulated_time

FIELDS = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", ECHO.encode()), (b":authority", b"x")),
    *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
)


class Clock:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ticking() -> Callable[[], float]:
    """A clock of which each look takes a twentieth of a turn."""
    ticks = itertools.count()
    return lambda: next(ticks) * TURN_S / 20


def run(test: Callable[[Clock, PeerTurn], Awaitable[None]]) -> None:
    async def ran() -> None:
        clock = Clock()
        await test(clock, PeerTurn(clock))

    asyncio.run(ran())


def test_the_connections_of_a_peer_share_its_time() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        began_s, until_s = turn.begin()
        assert until_s == TURN_S
        clock.now_s += 0.75 * TURN_S
        turn.end(began_s)
        _, until_s = turn.begin()
        assert until_s - clock.now_s == 0.25 * TURN_S
        assert not turn.is_used_up

    run(test)


def test_what_waits_goes_on_in_order_as_far_as_the_time_of_each_turn_goes() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        done: list[tuple[int, int]] = []
        turns = 0

        def work(number: int) -> Callable[[], None]:
            def resume() -> None:
                began_s, _ = turn.begin()
                clock.now_s += 0.6 * TURN_S
                done.append((turns, number))
                turn.end(began_s)

            return resume

        began_s, _ = turn.begin()
        clock.now_s += TURN_S
        turn.end(began_s)
        for number in range(5):
            turn.wait(work(number))
        while len(done) < 5:
            await asyncio.sleep(0)
            turns += 1
        assert [number for _, number in done] == [0, 1, 2, 3, 4]
        assert max(sum(at == turn_ for at, _ in done) for turn_ in range(turns + 1)) == 2

    run(test)


def test_a_connection_that_is_gone_holds_up_nobody_behind_it() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        called: list[str] = []
        began_s, _ = turn.begin()
        clock.now_s += TURN_S
        turn.end(began_s)
        turn.wait(lambda: called.append("gone"))  # does no work
        turn.wait(lambda: called.append("next"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert called == ["gone", "next"]

    run(test)


def test_what_fails_keeps_nobody_behind_it_waiting() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        called: list[str] = []
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))

        def fail() -> None:
            raise ValueError("a handler's fault")

        turn.charge(TURN_S)
        turn.wait(fail)
        turn.wait(lambda: called.append("next"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert called == ["next"] and isinstance(failed[0], ValueError)

    run(test)


def test_who_waits_without_work_that_was_counted_goes_on_too() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        called: list[str] = []
        turn.wait(lambda: called.append("waited"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert called == ["waited"]

    run(test)


def test_each_peer_and_each_event_loop_has_a_turn_of_its_own() -> None:
    turns, kept = PeerTurns(), []

    async def two() -> None:
        one, other = turns.of("a"), turns.of("b")
        assert one is turns.of("a")
        assert one is not other
        kept.append(one)

    for _ in range(2):
        asyncio.run(two())
    assert kept[0] is not kept[1]


def test_a_flood_of_one_peer_does_not_hold_up_the_call_of_another() -> None:
    """Many calls in one read are answered in several turns of the loop, between which others are served."""

    async def test() -> None:
        server = CallServer(clock=ticking())
        flood = await greeted_client(server, address="10.0.0.1")
        other = await greeted_client(server, address="10.0.0.2")
        count = 400
        flood.transport.receive(b"".join(call(2 * number + 1) for number in range(count)))
        assert flood.connection.waits_for_turn
        assert not flood.transport.is_reading
        other.transport.receive(call(1))
        await settle(3)
        early = len(flood.transport.take())
        answers = await other.frames()
        assert content(answers, 1) == b"\0\0\0\0\1x"
        rest = await flood.frames()
        assert early
        assert {found.number for found in rest if found.kind == DATA} >= {2 * count - 1}
        assert flood.transport.is_reading
        assert server.port.calls == set()

    run_in_simulated_time(test)


def test_a_connection_that_waits_counts_for_its_peer_and_no_more_once_it_is_lost() -> None:
    async def test() -> None:
        server = CallServer(clock=ticking())
        clients = [Http2Client(server.port) for _ in range(3)]
        for client in clients:
            await client.greet()
        memory = server.server.admission.waiting
        for client in clients:
            client.transport.receive(b"".join(call(2 * number + 1) for number in range(400)))
        waiting = [client for client in clients if client.connection.waits_for_turn]
        assert len(waiting) == len(clients)
        assert memory.held >= len(waiting) * 2**17
        for client in clients:
            client.transport.abort()
        await settle(30)
        assert memory.held == 0

    run_in_simulated_time(test)


def test_work_that_takes_more_than_a_turn_is_owed() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        began_s, _ = turn.begin()
        clock.now_s += 4.5 * TURN_S
        turn.end(began_s)
        called: list[int] = []
        turns = 0
        turn.wait(lambda: called.append(turns))
        while not called:
            assert turn.is_used_up
            await asyncio.sleep(0)
            turns += 1
        assert called == [3], "in the fourth turn"

    run(test)


def test_work_within_work_is_counted_once_and_has_the_same_end() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        began_s, until_s = turn.begin()
        clock.now_s += 0.25 * TURN_S
        within_s, within_until_s = turn.begin()
        assert within_until_s == until_s
        clock.now_s += 0.25 * TURN_S
        turn.end(within_s)
        assert not turn.is_used_up
        turn.end(began_s)
        _, until_s = turn.begin()
        assert until_s - clock.now_s == 0.5 * TURN_S

    run(test)


def test_what_was_begun_goes_on_before_what_waits() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        called: list[str] = []
        turn.wait(lambda: called.append("new"))
        turn.wait(lambda: called.append("begun"), is_first=True)
        await turn.next()
        assert called == ["begun", "new"]

    run(test)


def test_of_what_was_begun_the_oldest_goes_on_first() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        called: list[int] = []
        turn.charge(2 * TURN_S)
        for number in range(3):
            turn.wait(partial(called.append, number), is_first=True)
        await turn.next()
        assert called == [0, 1, 2]

    run(test)


@pytest.mark.parametrize("work_s", [0.1 * TURN_S, 0.8 * TURN_S, 2.5 * TURN_S])
def test_tasks_that_wait_for_a_turn_do_not_work_in_the_same_one(work_s: float) -> None:
    """Each is counted before the next one is released, so others wait for one of them at a time."""

    async def test(clock: Clock, turn: PeerTurn) -> None:
        done: list[int] = []

        async def work(number: int) -> None:
            if turn.is_used_up:
                await turn.next()
            began_s, _ = turn.begin()
            clock.now_s += work_s
            turn.end(began_s)
            done.append(number)

        turn.charge(TURN_S)
        tasks = [asyncio.create_task(work(number)) for number in range(20)]
        longest_s = 0.0
        while len(done) < len(tasks):
            last_s = clock.now_s
            await asyncio.sleep(0)
            longest_s = max(longest_s, clock.now_s - last_s)
        assert done == list(range(20))
        assert longest_s < TURN_S + work_s

    run(test)


def test_a_task_that_was_cancelled_while_it_waits_holds_up_nobody_behind_it() -> None:
    async def test(clock: Clock, turn: PeerTurn) -> None:
        turn.charge(TURN_S)
        gone, other = asyncio.create_task(turn.next()), asyncio.create_task(turn.next())
        await asyncio.sleep(0)
        gone.cancel()
        await other
        assert gone.cancelled()

    run(test)


def test_a_client_whose_connections_wait_for_too_many_bytes_is_cut_off() -> None:
    async def test() -> None:
        admission = Admission()
        admission.waiting = SharedLimit(5 * 2**17)
        server = CallServer(admission, clock=ticking())
        clients = [Http2Client(server.port) for _ in range(4)]
        for client in clients:
            await client.greet()
        for client in clients:
            client.transport.receive(b"".join(call(2 * number + 1) for number in range(400)))
        assert [client.connection.waits_for_turn for client in clients] == [True, True, False, False]
        frames = await clients[3].frames()
        assert b"too many connections of this client wait" in frames[-1].payload
        for client in clients:
            client.transport.abort()
        await settle(30)
        assert admission.bytes.held == admission.waiting.held == 0

    run_in_simulated_time(test)


def call(number: int) -> bytes:
    return frame(HEADERS, END_HEADERS, number, encode_headers(FIELDS)) + frame(DATA, END_STREAM, number, b"\0\0\0\0\1x")
