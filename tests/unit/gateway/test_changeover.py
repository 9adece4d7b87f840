"""Another plan for all workflows of a gateway: one that comes, one that goes, and one that does not come up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.documents import load_any_project
from jellybean.planning import plan_project, require_plan
from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.gateways import Gateways
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.served_workflow import ServedWorkflow
from jellybean_agent import EmulatedLinks, PlanView, StatusError, Transport, plan_view, workflow_views
from jellybean_solver import to_document
from tests.support.two_scales import make_two_scales


class Told:
    """A recorder that only remembers what it was told."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said

    def start(self) -> None:
        self._said.append(f"{self._name} begins")

    async def close(self, *, ends_run: bool = True) -> None:
        self._said.append(f"{self._name} {'ends the run' if ends_run else 'leaves'}")

    async def end(self, *, has_kept: bool) -> None:
        self._said.append(f"{self._name} ends")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of both workflows."""
    project = make_two_scales(tmp_path_factory.mktemp("both") / "two")
    return to_document(require_plan(plan_project(load_any_project(project))))


class Fleet:
    """Gateways on workers that nobody runs; a plan takes over as `ready` says."""

    def __init__(self, both: dict[str, Any], folder: Path) -> None:
        self.views = dict(workflow_views(both))
        self.view = plan_view(both)
        self.addresses = {name: f"unix:{folder}/{name}" for name in self.view.workers}
        self.said: list[str] = []
        self.network = WorkerNetwork(Transport("two", insecure=True), set(), emulate=False)
        self.gateways = Gateways(self.view, self.network, self.make)

    async def make(self, view: PlanView, addresses: Mapping[str, str], _links: Path | None) -> ServedWorkflow:
        gateway = Gateway(view, addresses, EmulatedLinks((), None).open(), self.network)
        return ServedWorkflow(gateway, Told(view.served_name, self.said))  # type: ignore[arg-type]

    async def serve(self, *names: str) -> None:
        await self.gateways.add({name: self.views[name] for name in names}, self.addresses, None)
        self.gateways.start()

    async def replace(self, *names: str, timeout_s: float = 5.0, come_up: bool = True) -> None:
        coming = asyncio.create_task(self._come_up()) if come_up else None
        views = {name: self.views[name] for name in names}
        try:
            await self.gateways.replace(self.view, views, self.addresses, None, timeout_s)
        finally:
            if coming is not None:
                coming.cancel()

    async def _come_up(self) -> None:
        """All workers of all plans seem to be ready, though nobody answers at their addresses."""
        while True:
            for plan in _plans:
                for worker in plan.workers.values():
                    worker.state = "ready"
            await asyncio.sleep(0)


_plans: list[Any] = []


@pytest.fixture(autouse=True)
def _known_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    from jellybean.serving.gateway.plans.served_plan import ServedPlan

    _plans.clear()
    start = ServedPlan.start

    def remembered(plan: ServedPlan) -> None:
        _plans.append(plan)
        start(plan)

    monkeypatch.setattr(ServedPlan, "start", remembered)


def test_one_comes_and_one_goes(both: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        fleet = Fleet(both, tmp_path)
        await fleet.serve("shop")
        with pytest.raises(StatusError, match="no workflow 'yard' is served here, but shop"):
            fleet.gateways.of("yard")
        await fleet.replace("shop", "yard")
        assert fleet.gateways.of("yard").view.served_name == "yard"
        yard = fleet.gateways.of("yard")
        await fleet.replace("shop")
        await fleet.gateways.await_ended()
        assert fleet.gateways.names == ("shop",)
        assert yard.plans.costs.price_usd_per_h == 0.0, "yard is not served any more"
        await fleet.replace("shop", "yard")
        await fleet.gateways.close()
        assert fleet.said[:4] == ["shop begins", "yard begins", "yard leaves", "yard ends"]
        assert fleet.said[4:].count("yard begins") == 1

    asyncio.run(run())


def test_one_that_does_not_come_up_has_not_been_there(both: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        fleet = Fleet(both, tmp_path)
        await fleet.serve("shop")
        before = fleet.gateways.of("shop").plans.served
        with pytest.raises(StatusError, match=r"not ready within 0\.2 s"):
            await fleet.replace("shop", "yard", timeout_s=0.2, come_up=False)
        assert fleet.gateways.names == ("shop",)
        assert fleet.gateways.of("shop").plans.served is before
        assert fleet.gateways.of("shop").plans.billed == (before,)
        assert fleet.said == ["shop begins", "yard ends"], "yard's ledger has no line: nothing of it was served"
        await fleet.replace("shop", "yard")
        await fleet.gateways.close()

    asyncio.run(run())


def test_one_that_still_answers_comes_back_once_it_has_ended(both: dict[str, Any], tmp_path: Path) -> None:
    """It is waited for within the time limit, and refused with the reason beyond it."""

    async def run() -> None:
        fleet = Fleet(both, tmp_path)
        await fleet.serve("shop", "yard")
        yard, answered = fleet.gateways.of("yard"), asyncio.Event()
        finished = yard.finished

        async def finish() -> None:
            await answered.wait()
            await finished()

        yard.finished = finish  # type: ignore[method-assign]
        await fleet.replace("shop")
        still = "yard still answers requests of the time when it was served before"
        with pytest.raises(StatusError, match=still) as told:
            await fleet.replace("shop", "yard", timeout_s=0.1)
        assert told.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
        assert fleet.gateways.names == ("shop",)
        returning = asyncio.create_task(fleet.replace("shop", "yard", timeout_s=30.0))
        await asyncio.sleep(0)
        answered.set()
        await returning
        assert fleet.gateways.names == ("shop", "yard")
        await fleet.gateways.close()

    asyncio.run(run())


def test_a_cancelled_replacement_leaves_the_plan_before(both: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        fleet = Fleet(both, tmp_path)
        await fleet.serve("shop", "yard")
        before = [gateway.plans.served for gateway in fleet.gateways]
        replacing = asyncio.create_task(fleet.replace("shop", "yard", come_up=False))
        await asyncio.sleep(0.2)
        with pytest.raises(StatusError, match="replacing its plan already"):
            fleet.gateways.expect(fleet.view, fleet.views, fleet.addresses)
        replacing.cancel()
        await asyncio.gather(replacing, return_exceptions=True)
        assert [gateway.plans.served for gateway in fleet.gateways] == before
        fleet.gateways.expect(fleet.view, fleet.views, fleet.addresses)
        await fleet.gateways.close()

    asyncio.run(run())


def test_a_drain_ends_a_replacement_and_whoever_leaves(both: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        fleet = Fleet(both, tmp_path)
        await fleet.serve("shop", "yard")
        replacing = asyncio.create_task(fleet.replace("shop", "yard"))
        await asyncio.sleep(0)
        assert await fleet.gateways.drain(0.0) == 0
        with pytest.raises(StatusError, match="the gateway is draining"):
            await replacing
        await fleet.gateways.close()

    asyncio.run(run())
