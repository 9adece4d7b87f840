"""What a gateway makes of what workers say of themselves, and what it asks them for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean.serving.gateway.audits.audits import AuditOutcome
from jellybean.serving.gateway.metrics import audit_metric
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean_agent import Identity, PlanView, Role, StatusError, encode_tensor, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver import Link, to_document
from tests.one_gateway import gateways_of
from tests.support.audited_project import make_audited_project
from tests.support.scripted_workers import PLAIN, ScriptedWorker, Served, scale_view, served, tensor, until

INPUTS = {"x": tensor(1, 2, 3, 4)}
ANN, OF_YARD = Identity("tiny", Role.CLIENT, "ann").uri, Identity("tiny/yard", Role.CLIENT, "ann").uri


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


def says(**fields: object) -> Callable[[Served], None]:
    """`edge-1` says this of itself."""

    def change(found: Served) -> None:
        for name, value in fields.items():
            setattr(found.workers["edge-1"].status, name, value)

    return change


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"plan": "0123456789abcdef"}, "edge-1 of plan 0123456789ab answers at its address"),
        ({"worker": "edge-9"}, "edge-9 of plan "),
        ({"protocol": 9}, "it speaks protocol 9; this process speaks 2, and understands 1 to 3: update this process"),
    ],
)
def test_another_worker_at_an_address_is_not_used(two: PlanView, fields: dict[str, object], reason: str) -> None:
    async def test() -> None:
        async with served(two, away=("edge-1",), change=says(**fields)) as found:
            await found.workers["edge-1"].start()
            await until(lambda: found.gateway.status().reasons["edge-1"].startswith(reason))
            status = found.gateway.status()
            assert (status.workers["edge-1"], status.state) == ("starting", "degraded")
            for _ in range(3):
                assert (await found.gateway.infer(INPUTS, 5.0))[0] is None
            assert len(found.workers["edge-2"].received) == 3

    run(test())


def test_a_worker_of_the_version_before_is_used(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, change=says(protocol=0, several_gateways=False)) as found:
            assert (await found.gateway.infer(INPUTS, 5.0))[0] is None

    run(test())


def test_the_shapes_of_a_model_are_known_from_its_worker(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, away=("edge-1",)) as found:
            assert found.gateway.signature("double") is None
            await found.workers["edge-1"].start()
            await until(lambda: found.gateway.status().state == "ready")
            signature = found.gateway.signature("double")
            assert signature is not None
            assert list(signature.inputs["x"].shape) == [-1, 4]
            assert found.gateway.signature("other") is None

    run(test())


def test_metrics_are_those_of_the_workers_that_answer(two: PlanView) -> None:
    async def test() -> None:
        async with served(two) as found:
            for name, worker in found.workers.items():
                worker.metrics = b'jellybean_expired_total{operator="double",worker="%s"} 1.0\n' % name.encode()
            plans = found.gateway.plans
            read = await plans.worker_metrics()
            assert {name: text.splitlines()[2:] for name, text in read.items()} == {
                name: worker.metrics.splitlines() for name, worker in found.workers.items()
            }
            await found.workers["edge-1"].stop()
            await until(lambda: found.gateway.status().workers["edge-1"] == "gone")
            assert (await plans.worker_metrics()).keys() == {"edge-2"}

    run(test())


def test_states_are_asked_of_workers_that_are_there(two: PlanView) -> None:
    async def test() -> None:
        async with served(two, away=("edge-2",)) as found:
            plan, worker = found.gateway.plans.served, found.workers["edge-1"]
            state = agent_pb2.StreamState(operator="double", stream="s", after="a", plan=two.hash, tensors=[tensor(5)])
            await plan.call_state("WriteState", "edge-1", state)
            assert worker.states == {("s", "a"): tensor(5)}
            wanted = agent_pb2.StreamState(operator="double", stream="s", after="a", plan=two.hash)
            assert list((await plan.call_state("ReadState", "edge-1", wanted)).tensors) == [tensor(5)]
            worker.states.clear()
            with pytest.raises(StatusError, match="edge-1 has no state of s") as refused:
                await plan.call_state("ReadState", "edge-1", wanted)
            assert refused.value.status is grpc.StatusCode.ABORTED
            with pytest.raises(StatusError, match="worker edge-2 is starting") as away:
                await plan.call_state("ReadState", "edge-2", wanted)
            assert away.value.status is grpc.StatusCode.UNAVAILABLE

    run(test())


def test_bytes_that_cross_a_link_are_counted(tmp_path: Path) -> None:
    view = scale_view(tmp_path, "edge-1", "cloud-1", links=[Link("edge", "cloud", 0.5, None, 0.0)])

    async def test() -> None:
        async with served(view) as found:
            sent: list[object] = []
            found.gateway.plans.log_bytes(lambda *each: sent.append(each))
            for _ in range(4):
                assert (await found.gateway.infer(INPUTS, 5.0))[0] is None
            assert sent == [(view.hash, "x", ("edge", "cloud"), 16)] * 2
            assert dict(found.gateway.plans.served.bytes_sent) == {("x", "edge", "cloud"): 32}
            assert found.gateway.plans.costs.links_usd == pytest.approx(32 / 2**30 * 0.5)

    run(test())


def test_a_worker_is_asked_again_what_it_is(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, away=("edge-1",)) as found:
            worker = found.workers["edge-1"]
            worker.silences = 1
            await worker.start()
            await until(lambda: found.gateway.status().reasons["edge-1"] == "it does not describe itself: not now")
            assert found.gateway.status().state == "starting"
            await until(lambda: found.gateway.status().state == "ready")

    run(test())


def test_a_site_whose_workers_never_came_refuses(tmp_path: Path) -> None:
    """The other sites are served; one that was there before waits for its workers."""
    view = scale_view(tmp_path, "edge-1", sites={"edge": 2})
    first, second = (worker.name for worker in view.serving)

    async def test() -> None:
        async with served(view, away=(second,)) as found:
            assert found.gateway.status().state == "degraded"
            outcomes = [(await found.gateway.infer(INPUTS, 5.0))[0] for _ in range(8)]
            reasons = {outcome.reason for outcome in outcomes if outcome is not None}
            assert len(reasons) == 1
            assert reasons.pop().startswith(f"no route is left: worker {second} is starting")
            assert len(found.workers[first].received) == outcomes.count(None) < 8
            await found.workers[second].start()
            await until(lambda: found.gateway.status().state == "ready")
            assert [(await found.gateway.infer(INPUTS, 5.0))[0] for _ in range(8)] == [None] * 8
            await found.workers[second].stop()
            await until(lambda: found.gateway.status().workers[second] == "gone")
            late = await asyncio.gather(*(found.gateway.infer(INPUTS, 0.1) for _ in range(8)))
            reasons = {outcome.reason for outcome, _ in late if outcome is not None}
            waited = [reason for reason in reasons if reason.startswith("no route was open within 0.1 s: ")]
            assert waited
            assert all(f": no route is left: worker {second} is gone" in reason for reason in waited)

    run(test())


def test_why_a_box_is_not_ready_is_told(one: PlanView) -> None:
    async def test() -> None:
        async with served(one, away=("edge-1",)) as found:
            gateways = gateways_of(found.gateway, WorkerNetwork(PLAIN, set()))
            gateways.block("edge-1", "its disk is full")
            gateways.block("edge-9", "it is of another plan")
            assert gateways.status().reasons == {"edge-1": "its disk is full"}
            gateways.block("edge-1", "")
            assert "its disk is full" not in gateways.status().reasons.values()
            for workflow, caller in (("tiny", ANN), ("", ANN), ("", "")):
                assert gateways.of(workflow, caller) is found.gateway
            with pytest.raises(StatusError, match="the certificate is of workflow yard only, not of 'tiny'") as refused:
                gateways.of("tiny", OF_YARD)
            assert refused.value.status is grpc.StatusCode.PERMISSION_DENIED

    run(test())


# -- audits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    folder = make_audited_project(tmp_path_factory.mktemp("audits"), share_percent=100.0)
    plan = plan_project(load_project(folder), compare=False).plan
    assert plan is not None
    return plan_view(to_document(plan))


def scores(best: int) -> agent_pb2.Tensor:
    return encode_tensor(np.eye(10, dtype=np.float32)[best : best + 1])


def classify(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
    """Answer requests with class 3; audits are left to the test."""
    if not message.downstream.startswith("audit."):
        worker.answer(message, scores(3))


def audits_of(found: Served) -> list[tuple[ScriptedWorker, agent_pb2.Message]]:
    return [
        (worker, message)
        for worker in found.workers.values()
        for message in worker.received
        if message.downstream == "audit.classify"
    ]


def test_an_audit_is_compared_with_the_answer_or_lost(audited: PlanView) -> None:
    """Whatever becomes of it, its client has its answer."""
    inputs = {"x": encode_tensor(np.zeros((1, 11), np.float32))}

    def change(found: Served) -> None:
        for worker in found.workers.values():
            worker.status.ClearField("signatures")

    async def test() -> None:
        behaviours = dict.fromkeys(audited.workers, classify)
        async with served(audited, behaviours=behaviours, change=change) as found:
            audits, known = found.gateway.audits, set[str]()

            def unseen() -> list[tuple[ScriptedWorker, agent_pb2.Message]]:
                return [each for each in audits_of(found) if each[1].request_id not in known]

            async def audit() -> tuple[ScriptedWorker, agent_pb2.Message]:
                outcome, outputs = await found.gateway.infer(inputs, 5.0)
                assert outcome is None
                assert outputs == {"classify": scores(3)}
                await until(unseen, "the audit")
                ((worker, message),) = unseen()
                known.add(message.request_id)
                return worker, message

            for best, agreed in ((3, 1.0), (4, 1.0)):
                worker, message = await audit()
                worker.answer(message, scores(best))
                await until(lambda best=best: audits.counters.ended[AuditOutcome.COMPARED] == best - 2)
                assert audits.counters.agreed == agreed
            worker, message = await audit()
            worker.fail(message, grpc.StatusCode.INTERNAL, "broken")
            await until(lambda: audits.counters.ended[AuditOutcome.LOST] == 1)
            worker, message = await audit()
            path = [agent_pb2.Position(index=0, count=2)]
            worker.answer(message, scores(3), path=path)
            await until(lambda: audits.counters.ended[AuditOutcome.LOST] == 2)
            worker, message = await audit()
            worker.answer(message, agent_pb2.Tensor(dtype="float32", shape=[1, 10], data=b"short"))
            await until(lambda: audits.counters.ended[AuditOutcome.LOST] == 3)
            found_metrics = {sample.labels["outcome"]: sample.value for sample in audit_metric(audits.counters).samples}
            assert found_metrics == {"agreed": 1.0, "differed": 1.0, "shed": 0.0, "lost": 3.0}
            worker, message = await audit()
            await worker.stop()
            await until(lambda: audits.counters.ended[AuditOutcome.LOST] == 4)
            assert found.gateway.status().failed == 0
            assert not found.gateway.plans.served.has_attempts

    run(test())


def test_audits_in_flight_are_lost_at_the_end(audited: PlanView) -> None:
    inputs = {"x": encode_tensor(np.zeros((1, 11), np.float32))}

    async def test() -> None:
        def change(found: Served) -> None:
            for worker in found.workers.values():
                worker.status.ClearField("signatures")

        async with served(audited, behaviours=dict.fromkeys(audited.workers, classify), change=change) as found:
            assert (await found.gateway.infer(inputs, 5.0))[0] is None
            await until(lambda: audits_of(found))
            await found.gateway.close()
            assert found.gateway.audits.counters.ended[AuditOutcome.LOST] == 1
            assert not found.gateway.plans.served.has_attempts

    run(test())


@pytest.mark.parametrize(("count", "reason"), [(2**18, "larger than max"), (2**17, "has too many small parts")])
def test_a_description_without_end_leaves_its_worker_out(two: PlanView, count: int, reason: str) -> None:
    """Read whole, a compromised box would hold the gateway up for seconds each time it is asked what it is."""

    async def test() -> None:
        async with served(two, away=("edge-2",)) as found:
            worker = found.workers["edge-2"]
            worker.status.MergeFromString(b"\x7a\x00" * count)  # parts that this version does not know
            await worker.start()
            await until(lambda: reason in found.gateway.status().reasons["edge-2"])
            assert found.gateway.status().state == "degraded"
            assert (await found.gateway.infer(INPUTS, 5.0))[0] is None

    run(test())
