"""Boxes that ask for the plan: what they are told while one plan replaces another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean_agent import StatusError, plan_view
from jellybean_protos.enrol.v1 import enrol_pb2
from tests.support.tiny_models import make_plan, scale

WAIT_S = 20.0


def offer(root: Path, factor: float, workers: tuple[str, ...]) -> PlanOffer:
    sha256 = scale(root / f"models/{factor:g}.onnx", factor)
    operators = {f"o{i}": (["x"] if i == 0 else [f"o{i - 1}"], sha256) for i in range(len(workers))}
    document = make_plan(root, operators, [(1.0, dict(zip(operators, workers, strict=True)))], sources={"x": "edge"})
    return PlanOffer(plan_view(document), f"plan {factor:g}".encode(), {"": "g:1"})


def ask(rollout: PlanRollout, worker: str, **fields: object) -> asyncio.Task[enrol_pb2.PlanResponse]:
    return asyncio.create_task(rollout.answer(worker, enrol_pb2.PlanRequest(**{"wait_s": WAIT_S, **fields})))


def test_boxes_download_the_next_plan_before_any_of_them_stops_serving(tmp_path: Path) -> None:
    before, after = (offer(tmp_path, factor, ("edge-1", "cloud-1")) for factor in (2.0, 3.0))
    a, b = before.view.hash, after.view.hash
    switched = asyncio.Event()

    async def switch(left_s: float, allow: Callable[[], None]) -> None:
        allow()
        assert 0 < left_s <= WAIT_S
        switched.set()
        await asyncio.sleep(0)

    async def run() -> None:
        rollout = PlanRollout(before)
        boxes = {name: ask(rollout, name, have=a) for name in ("edge-1", "cloud-1")}
        await asyncio.sleep(0)
        replacing = asyncio.create_task(rollout.replace(after, WAIT_S, switch))
        for box in boxes.values():
            assert ((await box).plan, box.result().later) == (after.document, True)
        assert (await rollout.answer("edge-1", enrol_pb2.PlanRequest())).plan == before.document  # it has just started
        assert not (await rollout.answer("edge-1", enrol_pb2.PlanRequest(have=a))).plan  # it cannot download for later
        edge = ask(rollout, "edge-1", have=a, fetched=b)
        await asyncio.sleep(0.02)
        assert not edge.done()
        assert not switched.is_set()  # cloud-1 still downloads
        cloud = ask(rollout, "cloud-1", have=a, fetched=b)
        for box in (edge, cloud):
            assert ((await box).plan, box.result().later) == (after.document, False)
        await replacing
        assert switched.is_set()
        assert rollout.served is after

    asyncio.run(run())


def test_a_box_that_cannot_download_ends_the_replacement_and_is_asked_again_at_the_next_one(tmp_path: Path) -> None:
    before, after = (offer(tmp_path, factor, ("edge-1",)) for factor in (2.0, 3.0))
    have = before.view.hash

    async def switch(_left_s: float, allow: Callable[[], None]) -> None:
        allow()

    async def run() -> None:
        rollout = PlanRollout(before)
        box = ask(rollout, "edge-1", have=have)
        await asyncio.sleep(0)
        replacing = asyncio.create_task(rollout.replace(after, WAIT_S, switch))
        assert (await box).later
        box = ask(rollout, "edge-1", have=have, problem="the disk is full")
        with pytest.raises(StatusError, match="worker edge-1: the disk is full"):
            await replacing
        assert (rollout.served, box.done()) == (before, False)
        replacing = asyncio.create_task(rollout.replace(after, WAIT_S, switch))
        assert (await box).later
        await ask(rollout, "edge-1", have=have, fetched=after.view.hash)
        await replacing
        assert rollout.served is after

    asyncio.run(run())


def test_boxes_return_to_the_plan_before_if_the_next_one_does_not_get_ready(tmp_path: Path) -> None:
    before, after = offer(tmp_path, 2.0, ("edge-1",)), offer(tmp_path, 3.0, ("edge-1", "cloud-2"))

    async def run() -> None:
        rollout = PlanRollout(before)

        async def switch(_left_s: float, allow: Callable[[], None]) -> None:
            assert (await ask(rollout, "edge-1", have=before.view.hash)).later  # until the new worker is ready
            assert (await ask(rollout, "cloud-2")).plan == after.document
            allow()
            assert [found.document for found in rollout.offers] == [before.document, after.document]
            assert not (await ask(rollout, "edge-1", have=before.view.hash)).later
            with pytest.raises(StatusError, match="replacing its plan already"):
                await rollout.replace(before, WAIT_S, switch)
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, "not ready")

        with pytest.raises(StatusError, match="not ready"):  # no box waits for an answer: none is waited for
            await rollout.replace(after, WAIT_S, switch)
        assert (await ask(rollout, "edge-1", have=after.view.hash)).plan == before.document
        assert [found.document for found in rollout.offers] == [before.document]
        assert not (await ask(rollout, "edge-1", have=before.view.hash, wait_s=0.02)).plan

    asyncio.run(run())


def test_a_plan_that_was_switched_to_is_the_one_served_although_the_caller_is_cancelled(tmp_path: Path) -> None:
    before, after = (offer(tmp_path, factor, ("edge-1",)) for factor in (2.0, 3.0))

    async def run() -> None:
        rollout, kept = PlanRollout(before), list[str]()

        async def switch(_left_s: float, allow: Callable[[], None]) -> None:
            allow()
            replacing.cancel()  # arrives after the switch

        replacing = asyncio.create_task(rollout.replace(after, WAIT_S, switch, lambda: kept.append("after")))
        with pytest.raises(asyncio.CancelledError):
            await replacing
        assert (rollout.served, rollout.offers, kept) == (after, (after,), ["after"])
        assert (await ask(rollout, "edge-1", have=before.view.hash)).plan == after.document

    asyncio.run(run())


def test_a_box_that_asks_only_during_the_switch_and_cannot_serve_the_plan_ends_it(tmp_path: Path) -> None:
    before, after = offer(tmp_path, 2.0, ("edge-1",)), offer(tmp_path, 3.0, ("edge-1",))

    async def run() -> None:
        rollout = PlanRollout(before)
        ended: list[str] = []

        async def switch(_left_s: float, allow: Callable[[], None]) -> None:
            allow()
            assert not (await ask(rollout, "edge-1", have=before.view.hash)).later
            box = ask(rollout, "edge-1", have=before.view.hash, problem="the disk is full")
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                ended.append("cancelled")
                box.cancel()

        with pytest.raises(StatusError, match="worker edge-1: the disk is full"):
            await rollout.replace(after, WAIT_S, switch)
        assert (ended, rollout.served) == (["cancelled"], before)

    asyncio.run(run())


def test_a_problem_with_another_plan_neither_ends_a_replacement_nor_delays_the_answer(tmp_path: Path) -> None:
    before, failed, after = (offer(tmp_path, factor, ("edge-1",)) for factor in (2.0, 3.0, 4.0))

    async def switch(_left_s: float, allow: Callable[[], None]) -> None:
        allow()

    async def run() -> None:
        rollout = PlanRollout(before)
        late = {"problem": "the disk is full", "problem_plan": failed.view.hash}
        assert (await ask(rollout, "edge-1", have=failed.view.hash, **late)).plan == before.document
        box = ask(rollout, "edge-1", have=before.view.hash)
        await asyncio.sleep(0)
        replacing = asyncio.create_task(rollout.replace(after, WAIT_S, switch))
        assert (await box).later
        assert (await ask(rollout, "edge-1", have=before.view.hash, **late)).plan == after.document
        await ask(rollout, "edge-1", have=before.view.hash, fetched=after.view.hash)
        await replacing
        assert rollout.served is after

    asyncio.run(run())


@pytest.mark.parametrize("wait_s", [float("nan"), float("-inf"), -1.0, 0.0])
def test_a_wait_that_is_none_disturbs_no_timer(tmp_path: Path, wait_s: float) -> None:
    """A NaN among the timers of the event loop puts those of all others out of order."""
    served = offer(tmp_path, 2.0, ("edge-1",))

    async def run() -> None:
        rollout = PlanRollout(served)
        request = enrol_pb2.PlanRequest(have=served.view.hash, wait_s=wait_s)
        assert not (await rollout.answer("edge-1", request)).plan
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for number in (3, 1, 2):
            loop.call_at(now_s + 0.001 * number, fired.append, number)
        await asyncio.sleep(0.02)
        assert fired == [1, 2, 3]

    asyncio.run(run())
