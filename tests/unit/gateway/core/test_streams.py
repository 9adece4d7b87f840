"""Streams whose state is at workers: their order, and how the state follows the stream when workers and plans go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest

from jellybean.serving.gateway.gateway import GatewaySettings
from jellybean.serving.gateway.streams.streams import StreamChunk, StreamLimits
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PlanView, decode_tensor, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.scripted_workers import ScriptedWorker, Served, add_up, hold, served, tensor, until
from tests.support.tiny_models import make_plan, recurrent

Code = grpc.StatusCode


def view_of(root: Path, *workers: str, decay: float = 0.9) -> PlanView:
    operators = {"remember": (["x"], recurrent(root / "models/remember.onnx", decay))}
    routes = [(1.0 / len(workers), {"remember": worker}) for worker in workers]
    states = {"remember": (("state", "state_next"),)}
    return plan_view(make_plan(root, operators, routes, sources={"x": "edge"}, states=states))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return view_of(tmp_path_factory.mktemp("one"), "edge-1")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return view_of(tmp_path_factory.mktemp("two"), "edge-1", "edge-2")


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def adding(view: PlanView) -> dict[str, object]:
    return dict.fromkeys(view.workers, add_up)


class Camera:
    """A client's stream, whose chunks are 1, 2, 3, ..."""

    def __init__(self, found: Served, name: str = "s", caller: str = "") -> None:
        self._found, self._key, self._sent = found, Key(caller, name), 0

    async def send(
        self,
        value: float | None = None,
        *,
        number: int = 0,
        begins: bool | None = None,
        ends: bool = False,
        left_s: float = 20.0,
    ) -> float | Outcome:
        """The sum that is answered, or why there is none."""
        begins = self._sent == 0 if begins is None else begins
        self._sent += 1
        inputs = {"x": tensor(self._sent if value is None else value, 0, 0, 0)}
        chunk = StreamChunk(self._key, begins=begins, ends=ends, number=number)
        outcome, outputs = await self._found.gateway.infer(inputs, left_s, chunk=chunk)
        return outcome if outcome is not None else float(decode_tensor(outputs["remember"])[0, 0])


async def refusal(answer: Awaitable[float | Outcome], status: grpc.StatusCode) -> str:
    outcome = await answer
    assert isinstance(outcome, Outcome), outcome
    assert outcome.status is status, outcome
    return outcome.reason


def holder(found: Served) -> tuple[ScriptedWorker, ScriptedWorker]:
    """The worker that has had chunks, and the other."""
    first, second = found.workers.values()
    return (first, second) if first.received else (second, first)


def test_chunks_are_answered_one_after_another(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours=adding(two)) as found:
            named: list[str] = []
            found.gateway.on_answer = lambda key, attempt, outputs: named.append(key.id)
            camera, other = Camera(found), Camera(found, "other")
            assert await camera.send() == 1
            assert await other.send() == 1
            sums = await asyncio.gather(*(camera.send() for _ in range(5)), *(other.send(10) for _ in range(3)))
            assert sums == [3, 6, 10, 15, 21, 11, 21, 31]
            assert sorted(named) == sorted([*(f"s/{n}" for n in range(1, 7)), *(f"other/{n}" for n in range(1, 5))])
            assert [len(worker.received) for worker in found.workers.values()] in ([6, 4], [4, 6])
            status = found.gateway.status()
            assert (status.answered, status.failed, status.requests_in_hand) == (10, 0, 0)
            assert not found.gateway.plans.served.has_attempts

    run(test())


def test_a_chunk_has_its_number(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            assert [await camera.send(5, number=number) for number in (1, 2, 2, 3)] == [5, 10, 10, 15]
            assert len(found.received) == 3
            reason = await refusal(camera.send(number=5), Code.INVALID_ARGUMENT)
            assert reason == "stream 's': chunk 5 came, chunk 4 is next: send that first"
            assert "chunk 2 came" in await refusal(camera.send(number=2), Code.INVALID_ARGUMENT)
            assert await camera.send(1, number=4) == 16

    run(test())


def test_a_stream_begins_and_ends(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            reason = await refusal(camera.send(begins=False), Code.NOT_FOUND)
            assert reason.startswith("stream 's' is not known: it was not begun, has ended, was idle for 300 s, or")
            assert await camera.send(2, begins=True) == 2
            assert await camera.send(3) == 5
            assert await camera.send(4, begins=True) == 4
            assert await Camera(found, caller="ann").send(7) == 7  # of another client
            assert await camera.send(5, ends=True) == 9
            await refusal(camera.send(6), Code.NOT_FOUND)
            keys = [message.stream for message in found.received]
            assert len(set(keys)) == 3  # workers never see a stream's name again

    run(test())


def test_a_plan_with_a_state_needs_streams(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            outcome, _ = await found.gateway.infer({"x": tensor(1, 0, 0, 0)}, 5.0)
            assert outcome is not None
            assert outcome.reason == ("remember keeps a state by stream: say which stream this is, and that it begins")
            for name in ("", "é" * 129):
                reason = await refusal(Camera(found, name).send(), Code.INVALID_ARGUMENT)
                assert reason == f"a stream's id has 1 to 256 bytes, not {len(name.encode())}"
            assert await Camera(found, "é" * 128).send() == 1

    run(test())


def test_the_state_of_a_worker_that_is_killed_is_made_anew(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours=adding(two)) as found:
            camera = Camera(found)
            assert [await camera.send() for _ in range(4)] == [1, 3, 6, 10]
            busy, other = holder(found)
            await busy.stop()
            await until(lambda: found.gateway.status().workers[busy.name] == "gone")
            assert [await camera.send() for _ in range(2)] == [15, 21]
            assert len(other.received) == 6  # the four before once more
            assert found.gateway.status().answered == 6

    run(test())


def test_the_state_of_a_worker_that_leaves_is_moved(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours=adding(two)) as found:
            camera = Camera(found)
            assert [await camera.send() for _ in range(4)] == [1, 3, 6, 10]
            busy, other = holder(found)
            busy.drain()
            await until(lambda: found.gateway.status().workers[busy.name] == "draining")
            assert [await camera.send() for _ in range(2)] == [15, 21]
            assert len(other.received) == 2
            await other.stop()  # its copy, and the chunk after it, make the state again
            await busy.stop()
            await until(lambda: found.gateway.status().workers[busy.name] == "gone")
            await busy.start()
            await until(lambda: found.gateway.status().workers[busy.name] == "ready")
            busy.states.clear()
            assert await camera.send() == 28
            assert len(busy.received) == 4 + 2 + 1

    run(test())


def test_a_copy_bounds_what_is_sent_again(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, behaviours=adding(two)) as found:
            camera = Camera(found)
            sent = 0
            while sum(worker.state_reads for worker in found.workers.values()) < 2:  # the first copy was kept
                sent += 1
                assert await camera.send(1) == sent
            busy, other = holder(found)
            assert sent >= 32
            await busy.stop()
            await until(lambda: found.gateway.status().workers[busy.name] == "gone")
            assert await camera.send(1) == sent + 1
            assert len(other.received) <= sent + 1 - 16

    run(test())


def test_a_state_that_cannot_be_made_anew_is_told(two: PlanView) -> None:
    """No copy could be made for longer than chunks are kept."""

    async def test() -> None:
        async with served(two, behaviours=adding(two)) as found:
            for worker in found.workers.values():
                worker.refuses_states = True
            camera = Camera(found)
            for _ in range(70):
                await camera.send(1)
            busy, other = holder(found)
            other.refuses_states = False
            await busy.stop()
            await until(lambda: found.gateway.status().workers[busy.name] == "gone")
            assert await refusal(camera.send(1), Code.DATA_LOSS) == (
                "stream 's': its state was made anew from chunks 7 to 70; chunks 1 to 6 are lost to it. Chunk 71 was "
                "not run: send it again, or begin the stream anew"
            )
            assert await camera.send(1) == 65
            assert len(other.received) == 65

    run(test())


def test_a_state_that_a_worker_has_lost_is_made_anew(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            assert [await camera.send() for _ in range(3)] == [1, 3, 6]
            (worker,) = found.workers.values()
            worker.states.clear()
            assert await camera.send() == 10
            assert len(worker.received) == 3 + 1 + 3 + 1  # the refused one, those before, and it again

    run(test())


def test_a_state_that_cannot_be_made_anew_yet_is_made_anew_later(one: PlanView) -> None:
    """The chunks before are refused in the middle."""

    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            assert [await camera.send() for _ in range(3)] == [1, 3, 6]
            (worker,) = found.workers.values()
            worker.states.clear()
            count = len(worker.received)

            def refuse_second(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
                is_second = len(worker.received) == count + 3  # after the chunk that misses its state, and the first
                worker.fail(message, Code.INTERNAL, "broken") if is_second else add_up(worker, message)

            worker.behaviour = refuse_second
            assert await refusal(camera.send(), Code.INTERNAL) == "worker edge-1, operator remember: broken"
            assert await camera.send(4) == 10

    run(test())


def test_a_chunk_is_not_tried_for_ever(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            assert await camera.send() == 1
            (worker,) = found.workers.values()
            worker.behaviour = lambda worker, message: worker.fail(message, Code.INTERNAL, "broken")
            assert await refusal(camera.send(), Code.INTERNAL) == "worker edge-1, operator remember: broken"
            worker.behaviour = add_up
            assert await camera.send() == 1 + 3
            assert found.gateway.status().failed == 1

    run(test())


def test_chunks_wait_for_those_before_them(one: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(streams=StreamLimits(max_waiting=2))
        async with served(one, settings, behaviours={"edge-1": hold}) as found:
            camera = Camera(found)
            first = asyncio.create_task(camera.send())
            (message,) = await found.sent()
            late = camera.send(left_s=0.05)
            assert await refusal(late, Code.DEADLINE_EXCEEDED) == (
                "stream 's': no answer in time, as the chunks before it have none"
            )
            waiting = [asyncio.create_task(camera.send()) for _ in range(2)]
            await asyncio.sleep(0)
            assert await refusal(camera.send(), Code.RESOURCE_EXHAUSTED) == (
                "overloaded: 2 chunks of stream 's' wait for their turn"
            )
            draining = asyncio.create_task(found.gateway.drain(20.0))
            worker = found.workers["edge-1"]
            worker.behaviour = add_up
            add_up(worker, message)
            assert await first == 1
            assert await asyncio.gather(*waiting) == [1 + 3, 1 + 3 + 4]
            assert await draining == 0

    run(test())


def test_a_stream_that_begins_anew_leaves_the_chunk_before_behind(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            seen: list[dict[str, agent_pb2.Tensor]] = []
            found.gateway.on_outputs = lambda view, outputs: seen.append(dict(outputs))
            camera, worker = Camera(found), found.workers["edge-1"]
            before = asyncio.create_task(camera.send(5))
            (message,) = await found.sent()
            worker.behaviour = add_up
            assert await camera.send(7, begins=True) == 7
            add_up(worker, message)
            assert await before == 5
            assert await camera.send(1) == 8
            assert [tensors["remember"] for tensors in seen] == [
                tensor(7, 0, 0, 0),
                tensor(5, 0, 0, 0),
                tensor(8, 0, 0, 0),
            ]
            assert not found.gateway.plans.served.has_attempts

    run(test())


def test_a_client_that_gives_up_lets_the_next_chunk_pass(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours={"edge-1": hold}) as found:
            camera, worker = Camera(found), found.workers["edge-1"]
            asked = asyncio.create_task(camera.send())
            await found.sent()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await until(lambda: worker.dropped, "notice of the end")
            worker.behaviour = add_up
            assert await camera.send(5) == 5
            status = found.gateway.status()
            assert (status.answered, status.failed) == (1, 1)

    run(test())


def test_streams_are_bounded(one: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(streams=StreamLimits(max_streams=2))
        async with served(one, settings, behaviours=adding(one)) as found:
            first, second, third = (Camera(found, name) for name in "abc")
            assert [await first.send(), await second.send()] == [1, 1]
            assert await refusal(third.send(), Code.RESOURCE_EXHAUSTED) == (
                "overloaded: 2 streams are open, the most this gateway takes"
            )
            assert await first.send(ends=True) == 3
            assert await third.send(begins=True) == 2
            await refusal(first.send(), Code.NOT_FOUND)

    run(test())


def test_one_client_leaves_streams_to_the_others(one: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(streams=StreamLimits(max_streams=9))
        async with served(one, settings, behaviours=adding(one)) as found:
            crowd = [Camera(found, str(number), "mallory") for number in range(9)]
            assert [await camera.send() for camera in crowd[:8]] == [1] * 8
            assert await refusal(crowd[8].send(), Code.RESOURCE_EXHAUSTED) == (
                "overloaded: 8 of 8 open streams are of this client, which is its limit"
            )
            assert await Camera(found, "a", "alice").send() == 1
            assert await crowd[0].send(ends=True) == 3

    run(test())


def test_a_stream_without_chunks_is_forgotten(one: PlanView) -> None:
    async def test() -> None:
        settings = GatewaySettings(streams=StreamLimits(max_streams=1, idle_s=0.01))
        async with served(one, settings, behaviours=adding(one)) as found:
            first, second = Camera(found, "a"), Camera(found, "b")
            assert await first.send() == 1
            await asyncio.sleep(0.02)
            assert await second.send() == 1
            assert "was idle for 0 s" in await refusal(first.send(), Code.NOT_FOUND)

    run(test())


@pytest.mark.parametrize("decay", [0.9, 0.5])
def test_the_state_goes_over_to_another_plan(one: PlanView, tmp_path: Path, decay: float) -> None:
    """As it is to the same model, made anew from the chunks for another."""
    after = view_of(tmp_path, "edge-1", "edge-2", decay=decay)

    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            camera = Camera(found)
            assert [await camera.send() for _ in range(3)] == [1, 3, 6]
            (before,) = found.workers.values()
            addresses = {name: f"{before.address}-{name}" for name in after.workers}
            gateway = before.gateway_address
            workers = [ScriptedWorker(name, after, address, gateway, add_up) for name, address in addresses.items()]
            for worker in workers:
                await worker.start()
            plan = found.gateway.plans.prepare(after, addresses, None)
            await until(lambda: plan.state == "ready")
            sent = asyncio.Event()

            async def after_the_next_chunk(_: object) -> None:
                await sent.wait()

            # Once the old plan is retired, its states cannot be read: the next chunk comes before.
            found.gateway.plans.on_read = after_the_next_chunk
            retired = found.gateway.plans.switch(plan)
            assert await camera.send() == 10
            assert sum(len(worker.received) for worker in workers) == (1 if decay == 0.9 else 4)
            sent.set()
            await retired
            for worker in workers:
                await worker.stop()

    run(test())


def test_an_unknown_tensor_is_refused_before_it_has_a_turn(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, behaviours=adding(one)) as found:
            chunk = StreamChunk(Key("", "s"), begins=True)
            outcome, _ = await found.gateway.infer({"x": tensor(1, 2)}, 5.0, chunk=chunk)
            assert outcome is not None
            assert outcome.status is Code.INVALID_ARGUMENT
            assert not found.received
            assert found.gateway.status().failed == 1

    run(test())
