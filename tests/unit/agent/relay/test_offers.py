"""Offers of a relay's pool: pings, ages, which of them is started, and who waits for one."""

from __future__ import annotations

import asyncio

import pytest

from jellybean_agent.errors import TransientError
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.offers import Offer, OfferPool
from jellybean_agent.relay.wire import ACCEPTED, PING, PONG, START, STARTED, UNREACHABLE
from tests.support.http2_client import settle
from tests.unit.agent.relay.pipe_connections import LIMITS, Connection, Offered, in_simulated_time

pytestmark = pytest.mark.usefixtures("connection_socket")


def test_an_idle_offer_is_pinged_and_lost_if_it_does_not_answer() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        lively, silent = Offered(pool), Offered(pool)
        assert (lively.said(), silent.said()) == (ACCEPTED, ACCEPTED)
        await asyncio.sleep(9.9)
        assert lively.said() == b""
        await asyncio.sleep(0.2)
        assert (lively.said(), silent.said()) == (PING, PING)
        lively.connection.receive(PONG)
        await asyncio.sleep(10.0)
        assert (lively.said(), silent.connection.transport.is_aborted) == (PING, True)
        assert len(pool) == 1

    in_simulated_time(test)


def test_an_offer_ends_at_its_age() -> None:
    async def test() -> None:
        pool = OfferPool("a", RelayLimits(offer_age_s=100.0, ping_s=3600.0))
        offered = Offered(pool)
        await asyncio.sleep(89.9)
        assert len(pool) == 1
        await asyncio.sleep(20.2)
        assert len(pool) == 0
        assert offered.connection.transport.has_ended

    in_simulated_time(test)


@pytest.mark.parametrize("data", [STARTED, b"x", PONG + b"x", UNREACHABLE])
def test_an_idle_offer_that_sends_something_else_is_reset(data: bytes) -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        offered = Offered(pool)
        offered.connection.receive(data)
        assert offered.connection.transport.is_aborted
        await settle()
        assert len(pool) == 0

    in_simulated_time(test)


def test_an_idle_offer_that_ends_is_gone() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        for how in ("end", "lose"):
            offered = Offered(pool)
            getattr(offered.connection.transport, how)()
            await settle()
            assert len(pool) == 0
        pool = OfferPool("a", LIMITS)
        ended = [Offered(pool), Offered(pool)]
        pool.end_all()
        assert all(offered.connection.transport.has_ended for offered in ended)
        assert len(pool) == 0

    in_simulated_time(test)


def test_the_newest_offer_is_started_and_what_comes_with_the_answer_is_kept() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        old, new = Offered(pool), Offered(pool)
        starting = asyncio.create_task(pool.started())
        await settle()
        assert (old.said(), new.said()) == (ACCEPTED, ACCEPTED + START)
        assert len(pool) == 1
        new.connection.receive(PONG + STARTED + b"first bytes")
        assert not new.connection.transport.is_reading, "until the pipe begins"
        new.connection.receive(b", more")
        offer = await starting
        assert (offer.endpoint, offer.early) == (new.connection.endpoint, b"first bytes, more")
        await asyncio.sleep(600.0)
        assert not new.connection.transport.is_closing(), "its timers have ended"

    in_simulated_time(test)


def test_an_offer_that_does_not_start_is_reset_and_the_next_is_tried() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        good, silent, gone = Offered(pool), Offered(pool), Offered(pool)
        starting = asyncio.create_task(pool.started())
        await settle()
        gone.connection.transport.lose()
        await asyncio.sleep(2.9)
        assert not silent.connection.transport.is_aborted
        await asyncio.sleep(0.2)
        assert silent.connection.transport.is_aborted
        good.connection.receive(STARTED)
        assert (await starting).endpoint is good.connection.endpoint

    in_simulated_time(test)


def test_a_tunnel_without_its_agent_fails_the_connection() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        offered, _ = Offered(pool), None
        starting = asyncio.create_task(pool.started())
        await settle()
        offered.connection.receive(UNREACHABLE)
        with pytest.raises(TransientError, match="its tunnel does not reach the agent"):
            await starting
        assert offered.connection.transport.has_ended

    in_simulated_time(test)


def test_a_connection_waits_for_an_offer_and_gives_up_after_a_time() -> None:
    async def test() -> None:
        pool, loop = OfferPool("a", LIMITS), asyncio.get_running_loop()
        waiting = [asyncio.create_task(pool.started()) for _ in range(2)]
        await asyncio.sleep(9.0)
        assert pool.waiting == 2
        offered = Offered(pool)
        assert len(pool) == 0, "the first that waits gets it"
        await settle()
        offered.connection.receive(STARTED)
        assert (await waiting[0]).endpoint is offered.connection.endpoint
        began_s = loop.time()
        with pytest.raises(TransientError, match="no offer of worker a within 10 s"):
            await waiting[1]
        assert loop.time() - began_s <= 1.1
        assert pool.waiting == 0
        late = Offered(pool)
        assert (len(pool), late.said()) == (1, ACCEPTED), "who has given up gets none"

    in_simulated_time(test)


def test_a_caller_that_is_gone_leaves_its_offer_to_others() -> None:
    async def test() -> None:
        pool = OfferPool("a", LIMITS)
        waiting = asyncio.create_task(pool.started())
        await settle()
        offered = Offered(pool)
        waiting.cancel()
        await settle()
        assert len(pool) == 1
        starting = asyncio.create_task(pool.started())
        await settle()
        starting.cancel()
        await settle()
        assert offered.connection.transport.is_aborted, "it had been started for one that is gone"

    in_simulated_time(test)


def test_an_offer_ends_only_once() -> None:
    async def test() -> None:
        gone: list[Offer] = []
        connection = Connection()
        offer = Offer(connection.endpoint, LIMITS, gone.append)
        offer.end()
        assert gone == [offer]
        await asyncio.sleep(20.0)
        assert connection.take() == ACCEPTED

    in_simulated_time(test)


def test_who_asks_for_a_worker_takes_turns_with_others() -> None:
    async def test() -> None:
        pool, started = OfferPool("a", LIMITS), list[str]()

        async def ask(asker: str) -> None:
            await pool.started(asker)
            started.append(asker)

        tasks = [asyncio.create_task(ask(asker)) for asker in ("box", "box", "box", "box", "", "third")]
        await settle()
        assert pool.waiting == 6
        for _ in tasks:
            offered = Offered(pool)
            await settle()
            offered.connection.receive(STARTED)
            await settle()
        assert started == ["box", "", "third", "box", "box", "box"]
        await asyncio.gather(*tasks)
        assert pool.waiting == 0

    in_simulated_time(test)
