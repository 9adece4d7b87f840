"""One box that lies, over real sockets: what it says of others is dropped, counted and shown, and harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.ledger import By, Ledger, cost
from jellybean.serving.gateway.plans.answer_rights import AnswerRights
from jellybean_agent import PlanView, StreamSource, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver.model.problem import Link
from tests.support.gateway_in_process import running_gateway
from tests.support.scripted_workers import (
    INPUTS,
    ScriptedWorker,
    Served,
    hold,
    run,
    scale_view,
    served,
    tensor,
    until,
)
from tests.support.tiny_models import fan_out, make_plan, scale

Code = grpc.StatusCode
ROUTES = [
    (0.95, {"double": "edge-1", "triple": "cloud-1"}),
    (0.05, {"double": "edge-2", "triple": "cloud-1"}),
]
EVIL = "edge-2"


def two_operators(root: Path, routes: Any = ROUTES, **settings: Any) -> Any:
    operators = {
        "double": (["x"], scale(root / "models/double.onnx", 2.0)),
        "triple": (["double"], scale(root / "models/triple.onnx", 3.0)),
    }
    return make_plan(root, operators, routes, **{"sources": {"x": "edge"}, **settings})


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return plan_view(two_operators(tmp_path_factory.mktemp("plan")))


def failed(worker: str, status: Code, reason: str = "forged\x1b[31m\nline") -> agent_pb2.Failure:
    return agent_pb2.Failure(worker=worker, operator="triple", reason=reason, status=int(status.value[0]))


LIES: dict[str, Callable[[], dict[str, Any]]] = {
    "another operator": lambda: {"upstream": "triple", "tensor": tensor(6, 6, 6, 6)},
    "its operator, which is no sink": lambda: {"upstream": "double", "tensor": tensor(6, 6, 6, 6)},
    "no operator": lambda: {"upstream": "", "tensor": tensor(6, 6, 6, 6)},
    "its own route": lambda: {"upstream": "triple", "tensor": tensor(6, 6, 6, 6), "route": 1},
    "its own failure": lambda: {"failure": failed(EVIL, Code.INTERNAL)},
    "another's failure": lambda: {"failure": failed("cloud-1", Code.INVALID_ARGUMENT)},
    "another is gone": lambda: {"failure": failed("cloud-1", Code.UNAVAILABLE)},
    "nobody's failure": lambda: {"failure": failed("", Code.UNAVAILABLE)},
}


@pytest.mark.parametrize("lie", LIES)
def test_of_requests_elsewhere_it_says_nothing(view: PlanView, lie: str) -> None:
    """Even if it knew their keys, which hold random digits."""

    async def test() -> None:
        async with served(view, behaviours=dict.fromkeys(view.workers, hold)) as found:
            asked = asyncio.create_task(found.gateway.infer(INPUTS, 20.0))
            await until(lambda: found.workers["edge-1"].received)
            (message,) = found.workers["edge-1"].received
            found.workers[EVIL].forge(message, **LIES[lie]())
            await until(lambda: found.gateway.plans.served.claims.counts[EVIL])
            found.workers["edge-1"].answer(message, tensor(1, 2, 3, 4), upstream="triple")
            outcome, outputs = await asked
            assert (outcome, outputs) == (None, {"triple": tensor(1, 2, 3, 4)})
            status = found.gateway.status()
            assert (status.retried, status.failed, set(status.workers.values())) == (
                0,
                0,
                {"ready"},
            )
            assert list(status.reasons) == [EVIL]
            assert status.reasons[EVIL].startswith("claims refused: 1; the last: it ")

    run(test())


@pytest.mark.parametrize("lie", ["another operator", "another's failure", "nobody's failure"])
def test_of_its_own_requests_it_says_nothing_for_others(tmp_path: Path, lie: str) -> None:
    view = plan_view(two_operators(tmp_path, [(1.0, ROUTES[1][1])]))

    async def test() -> None:
        async with served(view, behaviours=dict.fromkeys(view.workers, hold)) as found:
            asked = asyncio.create_task(found.gateway.infer(INPUTS, 20.0))
            await until(lambda: found.workers[EVIL].received)
            (message,) = found.workers[EVIL].received
            found.workers[EVIL].forge(message, **LIES[lie]())
            await until(lambda: found.gateway.plans.served.claims.counts[EVIL])
            found.workers[EVIL].answer(message, tensor(1, 2, 3, 4), upstream="triple")
            assert await asked == (None, {"triple": tensor(1, 2, 3, 4)})

    run(test())


def test_a_worker_fails_its_own_requests_and_names_a_neighbour_that_it_cannot_reach(
    tmp_path: Path,
) -> None:
    view = plan_view(two_operators(tmp_path, [(1.0, ROUTES[1][1])]))

    async def answered(found: Served, failure: agent_pb2.Failure) -> str:
        known = len(found.workers[EVIL].received)
        asked = asyncio.create_task(found.gateway.infer(INPUTS, 0.5))
        await until(lambda: len(found.workers[EVIL].received) > known)
        found.workers[EVIL].forge(found.workers[EVIL].received[-1], failure=failure)
        outcome, _ = await asked
        assert outcome is not None
        return f"{outcome.status.name} {outcome.reason}"

    async def test() -> None:
        async with served(view, behaviours=dict.fromkeys(view.workers, hold)) as found:
            text = await answered(found, failed(EVIL, Code.INVALID_ARGUMENT))
            assert text == "INVALID_ARGUMENT worker edge-2, operator triple: forged\\x1b[31m\\nline"
            assert (await answered(found, failed(EVIL, Code.OK))).startswith("UNKNOWN ")  # a failure is no success
            assert "worker cloud-1" in await answered(found, failed("cloud-1", Code.UNAVAILABLE))
            assert not found.gateway.plans.served.claims.counts

    run(test())


def test_an_answer_is_a_tensor(tmp_path: Path) -> None:
    view = scale_view(tmp_path, EVIL)

    def nonsense(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
        worker.answer(message, agent_pb2.Tensor(dtype="none\n", shape=[1], data=b"x"))

    async def test() -> None:
        async with served(view, behaviours={EVIL: nonsense}) as found:
            outcome, outputs = await found.gateway.infer(INPUTS, 5.0)
            assert (outcome is not None, outputs) == (True, {})
            assert outcome is not None
            assert (outcome.status, outcome.reason) == (
                Code.INTERNAL,
                "the answer is a tensor of 'none\\\\n', which is no type",
            )

    run(test())


def test_a_key_says_nothing_of_the_next(view: PlanView) -> None:
    async def test() -> None:
        async with served(view, behaviours=dict.fromkeys(view.workers, hold)) as found:
            asked = [asyncio.create_task(found.gateway.infer(INPUTS, 20.0)) for _ in range(8)]
            keys = [message.request_id.split("-") for message in await found.sent(8)]
            for task in asked:
                task.cancel()
            assert len({prefix for prefix, _, _ in keys}) == 1
            assert sorted(int(number) for _, _, number in keys) == list(range(8))  # by which children are spread
            assert len({random for _, random, _ in keys}) == 8
            assert all(len(random) == 16 for _, random, _ in keys)

    run(test())


def test_of_spread_children_a_worker_answers_for_its_own(tmp_path: Path) -> None:
    operators = {"split": (["x"], "0" * 64), "each": ([fan_out("split", "each")], "0" * 64)}
    routes = [(0.5, {"split": "cloud-1", "each": name}) for name in ("edge-1", "edge-2")]
    plan = plan_view(make_plan(tmp_path, operators, routes, sources={"x": "edge"}))
    group = ("edge-1", "edge-2")
    view = replace(plan, groups={("each", name): group for name in group})
    rights, number, key = AnswerRights(view), view.table.spread(0), "p-r-3"
    workers = view.table.workers(number)

    def excess(sender: str, index: int, count: int = 2) -> str:
        path = [agent_pb2.Position(index=index, count=count)]
        told = agent_pb2.Message(request_id=key, route=number, upstream="each", path=path)
        return rights.excess(told, sender, number, workers, frozenset({"each"}))

    for index in range(4):
        runner = view.table.worker(number, "each", ((index, 4),), key)
        assert not excess(runner, index, 4)
        assert excess(next(name for name in group if name != runner), index, 4)
    assert excess("cloud-1", 0)


def test_nobody_answers_to_whom_the_plan_gives_nothing(view: PlanView) -> None:
    """A process that the gateway lets in, of a plan before or to come, or without a name."""

    async def test() -> None:
        async with served(view, behaviours=dict.fromkeys(view.workers, hold)) as found:
            asked = asyncio.create_task(found.gateway.infer(INPUTS, 20.0))
            (message,) = await found.sent()
            for sender in ("edge-7", "", "?"):
                for lie in LIES.values():
                    told = {"request_id": message.request_id, "route": message.route, **lie()}
                    found.gateway.receive(agent_pb2.Message(**told), StreamSource(sender))
            assert found.gateway.plans.served.claims.counts == {"?": 3 * len(LIES)}
            assert not asked.done()
            asked.cancel()

    run(test())


# -- metrics ----------------------------------------------------------------------------------------------------------

LABELS = 'operator="double",variant="only",worker="%s"'
LINK = 'operator="double",tier="edge",to_tier="cloud",variant="only",worker="%s"'


def stated(name: str, done: float, sent: float) -> str:
    return (
        f"jellybean_requests_total{{{LABELS % name}}} {done}\njellybean_busy_seconds_total{{{LABELS % name}}} 0.5\n"
        f"jellybean_link_bytes_total{{{LINK % name}}} {sent}\n"
    )


FORGED = {
    "another's lines": (stated("edge-1", 1e15, 1e18) + stated("cloud-1", 1e15, 1e18)).encode(),
    "its own lines": stated(EVIL, 1e15, 1e18).encode(),
    "no number": stated(EVIL, float("nan"), float("inf")).encode(),
    "no text": b"\xff\xfe{\x00}\n" * 100,
    "half a label": b'jellybean_busy_seconds_total{operator="double\n',
    "another type": b"# TYPE jellybean_requests gauge\n# TYPE jellybean_gateway_requests gauge\n",
    "the gateway's": b'jellybean_gateway_requests_total{outcome="answered"} 1e9\njellybean_plan_info{} 9\n',
    "a nested label": (
        b'jellybean_requests_total{operator="double",variant="only",worker="edge-2\\",worker=\\"edge-1"} 1e9\n'
        b'jellybean_requests_total{operator="double",variant="only",worker="edge-2",worker="edge-1"} 1e9\n'
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_metrics_of_one_are_booked_to_it_alone(tmp_path: Path, forged: str) -> None:
    """The ledger and the scrape have those of all others, whatever one of them states."""
    document = two_operators(tmp_path, links=[Link("edge", "cloud", 8.0)])

    async def test() -> None:
        options = ("--ledger", f"{tmp_path}/ledger.db", "--live", f"{tmp_path}/live")
        async with running_gateway(document, tmp_path, *options) as gateway:
            for name, worker in gateway.workers.items():
                worker.metrics = b"" if name == "cloud-1" else stated(name, 7, 2.0**20).encode()
            gateway.workers[EVIL].metrics += FORGED[forged]
            text = (await gateway.stub.Metrics(agent_pb2.MetricsRequest())).text.decode()
            assert f"jellybean_requests_total{{{LABELS % 'edge-1'}}} 7.0" in text
            assert f"jellybean_requests_total{{{LABELS % EVIL}}} 7.0" in text
            assert text.count("# TYPE jellybean_requests_total counter") == 1
            assert 'jellybean_gateway_requests_total{outcome="answered"} 0.0' in text
            assert "1e+" not in "".join(line for line in text.splitlines() if line.startswith("jellybean_requests"))
            reasons = (await gateway.status()).reasons
            assert not reasons if forged in ("another type", "the gateway's") else list(reasons) == [EVIL]
        ledger = Ledger(f"{tmp_path}/ledger.db")
        booked = {line.name: (line.done, line.traffic_usd) for line in cost(ledger, By.WORKER)}
        ledger.close()
        assert booked["edge-1"] == booked[EVIL] == (7, pytest.approx(8.0 / 1024))
        assert booked["cloud-1"] == (0, 0)

    run(test())


# -- signatures -------------------------------------------------------------------------------------------------------

WRONG = agent_pb2.TensorSpec(dtype="int64", shape=[1, 7])


def lie_about_inputs(worker: ScriptedWorker) -> None:
    worker.status.signatures["double"].inputs["x"].CopyFrom(WRONG)


def lie_about_others(worker: ScriptedWorker) -> None:
    worker.status.signatures["triple"].inputs["double"].CopyFrom(WRONG)
    worker.status.signatures["triple"].outputs[""].CopyFrom(WRONG)


def lie_beyond_the_plan(worker: ScriptedWorker) -> None:
    worker.status.signatures["double"].inputs["y"].CopyFrom(WRONG)


def lie_about_shapes(worker: ScriptedWorker) -> None:
    worker.status.signatures["double"].inputs["x"].CopyFrom(agent_pb2.TensorSpec(dtype="float32", shape=[-(2**63), 4]))


DISPUTED = (lie_about_inputs, lie_about_others)  # one of two says so, or what another runs: nobody is left out


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("lie", [lie_about_inputs, lie_about_others, lie_beyond_the_plan, lie_about_shapes])
def test_a_wrong_signature_refuses_nobody(
    tmp_path: Path, lie: Callable[[ScriptedWorker], None], is_first: bool
) -> None:
    view = plan_view(two_operators(tmp_path, ROUTES[::-1] if is_first else ROUTES))

    def at_once(worker: ScriptedWorker, message: agent_pb2.Message) -> None:
        worker.answer(message, message.tensor, upstream="triple")

    def change(found: Served) -> None:
        lie(found.workers[EVIL])

    async def test() -> None:
        behaviours = dict.fromkeys(view.workers, at_once)
        async with served(view, behaviours=behaviours, change=change, waits_for=("edge-1", "cloud-1")) as found:
            states = found.gateway.plans.served.workers
            await until(lambda: states[EVIL].state in ("ready", "quarantined"))
            for _ in range(40):
                assert (await found.gateway.infer(INPUTS, 5.0))[0] is None
            assert found.gateway.signature("double").inputs["x"].dtype == "float32"
            assert found.gateway.signature("triple").inputs["double"].dtype == "float32"
            assert states[EVIL].state == ("ready" if lie in DISPUTED else "quarantined")
            assert found.gateway.state == "ready"  # nothing is waited for
            assert (EVIL in found.gateway.status().reasons) is (lie not in DISPUTED)
            assert not found.workers[EVIL].received or lie in DISPUTED

    run(test())


def test_one_against_a_majority_gets_no_requests(tmp_path: Path) -> None:
    view = scale_view(tmp_path, "edge-1", EVIL, "edge-3")

    def change(found: Served) -> None:
        lie_about_inputs(found.workers[EVIL])

    async def test() -> None:
        async with served(view, change=change, waits_for=("edge-1", "edge-3")) as found:
            await until(lambda: found.gateway.plans.served.workers[EVIL].state == "quarantined")
            reached = len(found.workers[EVIL].received)
            for _ in range(20):
                assert (await found.gateway.infer(INPUTS, 5.0))[0] is None
            assert len(found.workers[EVIL].received) == reached
            assert list(found.gateway.status().reasons) == [EVIL]
            assert found.gateway.signature("double").inputs["x"].dtype == "float32"

    run(test())


def test_one_of_two_equals_is_believed_by_nobody(tmp_path: Path) -> None:
    """Who is right is not known: requests are not checked, and whoever serves them checks them itself."""
    view = scale_view(tmp_path, "edge-1", "edge-2")

    def change(found: Served) -> None:
        lie_about_inputs(found.workers["edge-1"])

    async def test() -> None:
        async with served(view, change=change) as found:
            for _ in range(10):
                assert (await found.gateway.infer(INPUTS, 5.0))[0] is None
            assert all(worker.received for worker in found.workers.values())
            found.workers["edge-1"].status.signatures["double"].inputs["x"].CopyFrom(
                agent_pb2.TensorSpec(dtype="float32", shape=[-1, 4])
            )
            await found.workers["edge-1"].stop()
            await until(lambda: found.gateway.plans.served.workers["edge-1"].state == "gone")
            await found.workers["edge-1"].start()
            await until(lambda: found.gateway.plans.served.workers["edge-1"].state == "ready")
            outcome, _ = await found.gateway.infer({"x": tensor(1)}, 5.0)
            assert outcome is not None
            assert "expected float32 [any, 4]" in outcome.reason

    run(test())
