"""Streams by workflow: a receiver that is full for one workflow takes the messages of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jellybean_agent import (
    DELIVER_METHOD,
    Inboxes,
    PeerSettings,
    Policy,
    RpcServer,
    SharedLimit,
    StreamSource,
    Transport,
    agent_service_handler,
)
from jellybean_agent.transport.inboxes import INITIAL_CREDIT
from jellybean_agent.transport.lanes import PeerLanes
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.waiting import wait_until_async

MANY = INITIAL_CREDIT + 40


def message(workflow: str, number: int) -> agent_pb2.Message:
    tensor = agent_pb2.Tensor(dtype="uint8", shape=[1], data=b"x")
    return agent_pb2.Message(
        request_id=f"{workflow}-{number}", upstream=f"{workflow}/first", downstream=f"{workflow}/last", tensor=tensor
    )


def test_a_queue_of_one_workflow_holds_up_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        got: Counter[str] = Counter()
        full = {"shop"}

        def take(found: agent_pb2.Message, _source: StreamSource) -> None:
            got[found.upstream.partition("/")[0]] += 1

        inboxes, transport = Inboxes(take, full.__contains__, workflows=("shop", "yard")), Transport("w", insecure=True)
        server: RpcServer = transport.server(Policy("w", ("a-1",)))
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        tmp_path.chmod(0o700)
        transport.bind(server, f"unix:{tmp_path}/s")
        await server.start()
        lost: list[str] = []
        lanes = PeerLanes(
            "b-1",
            f"unix:{tmp_path}/s",
            PeerSettings("a-1", transport),
            ("shop", "yard"),
            on_lost=lambda _name, why, _messages: lost.append(why),
        ).start()
        for number in range(MANY):
            lanes.put(message("shop", number))
        for number in range(MANY):
            lanes.put(message("yard", number))
        await wait_until_async(lambda: got["yard"] == MANY)
        assert got["shop"] == INITIAL_CREDIT, "no further credit while it is full"
        assert lanes.queued == MANY - INITIAL_CREDIT
        full.clear()
        inboxes.has_capacity("shop")
        await wait_until_async(lambda: got["shop"] == MANY)
        assert not lost
        lanes.forget("shop-1")
        await lanes.close()
        await server.stop(0.1)

    asyncio.run(run())


def test_what_waits_for_one_worker_is_bounded_for_all_its_workflows_together(tmp_path: Path) -> None:
    """One has at most its share, so that others' messages may wait too."""

    async def run() -> None:
        limit, lost = SharedLimit(8000), Counter[str]()

        def on_lost(_name: str, reason: str, messages: Sequence[agent_pb2.Message]) -> None:
            assert "bytes wait for it" in reason
            lost.update(found.request_id.partition("-")[0] for found in messages)

        settings = PeerSettings("a-1", Transport("w", insecure=True), queued_bytes=limit)
        lanes = PeerLanes("b-1", f"unix:{tmp_path}/s", settings, ("shop", "yard", "port"), on_lost=on_lost)
        for number in range(100):
            lanes.put(message("shop", number), data=bytes(100))
        assert (lanes.queued, limit.held) == (70, 7000)
        for number in range(100):
            lanes.put(message("yard", number), data=bytes(100))
        assert limit.held <= 8000
        lanes.put(message("port", 0), data=bytes(2000))
        assert limit.held <= 8000 + 2000, "one message of each may wait"
        await asyncio.sleep(0)
        assert lost["shop"] == 30 and 0 < lost["yard"] < 100 and not lost["port"]
        lanes.put(message("shop", 100))
        assert lanes.queued == 70 + 100 - lost["yard"] + 2, "what has no bytes of its own, as a failure, may wait too"
        for number in range(100):
            lanes.forget(f"shop-{number}")
        before = limit.held
        lanes.put(message("yard", 100), data=bytes(100))
        assert limit.held == before + 100
        lanes.expire(float("inf"))
        assert (lanes.queued, limit.held) == (0, 0)
        await lanes.close()

    asyncio.run(run())
