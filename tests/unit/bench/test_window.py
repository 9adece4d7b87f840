"""The counted window of a load test: what traffic costs, from counters of bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jellybean.bench.meters import CpuTime, Reading
from jellybean.bench.window import Window
from jellybean.serving import Endpoint
from jellybean_agent import PlanView, plan_view
from jellybean_solver import GIB, Link, from_document
from jellybean_solver.model.plan_document import Document
from tests.support.tiny_models import make_plan, scale

Sent = Mapping[tuple[str, str, str], float]


@dataclass
class Readings:
    """Meters with given counters, one hour apart."""

    view: PlanView
    endpoint: Endpoint
    sent: list[Sent]
    cpu: list[CpuTime | None] = field(default_factory=list)

    async def read(self) -> Reading:
        cpu = self.cpu.pop(0) if self.cpu else None
        return Reading(-3600.0 * len(self.sent), {}, self.sent.pop(0), cpu)

    def deaths(self) -> Iterator[str]:
        yield from ()


@pytest.fixture
def document(tmp_path: Path) -> Document:
    operators = {"times": (["x"], scale(tmp_path / "models/times.onnx", 2.0))}
    routes, links = [(1.0, {"times": "cloud-1"})], (Link("edge", "cloud", 0.5),)
    return make_plan(tmp_path, operators, routes, sources={"x": "edge"}, links=links)


BEGIN = {("", "edge", "cloud"): 2.0 * GIB, ("edge-1", "edge", "cloud"): 2.0 * GIB}


@pytest.mark.parametrize(
    ("end", "sent_gib"),
    [
        ({("", "edge", "cloud"): 5.0 * GIB, ("edge-1", "edge", "cloud"): 3.0 * GIB}, 4.0),
        ({**BEGIN, ("edge-2", "edge", "cloud"): 1.0 * GIB}, 1.0),  # a sender's first bytes
        ({("", "edge", "cloud"): 9.0 * GIB, ("edge-1", "edge", "cloud"): 1.0 * GIB}, None),  # it was started again
        ({("", "edge", "cloud"): 9.0 * GIB}, None),  # and has sent nothing since
    ],
)
def test_the_cost_of_traffic_is_unknown_if_a_counter_restarted(
    document: Document, end: Sent, sent_gib: float | None
) -> None:
    plan, meters = from_document(document), Readings(plan_view(document), Endpoint("unix:none"), [BEGIN, end])
    window = Window(meters, 0.0, 1.0, lambda done, total, label: None)
    for elapsed_s in (0.0, 1.0):
        asyncio.run(window.tick(elapsed_s))
    workers = sum(worker.price_usd_per_h for worker in plan.workers)
    expected = None if sent_gib is None else pytest.approx(workers + sent_gib * 0.5)
    assert window.cost_usd_per_h(plan) == expected


@pytest.mark.parametrize(
    ("cpu", "share"),
    [
        ([CpuTime(1000.0, 400.0), CpuTime(1060.0, 445.0)], 0.75),
        ([CpuTime(1000.0, 400.0), CpuTime(1000.0, 400.0)], None),
        ([None, None], None),  # the workers are on other machines
    ],
)
def test_the_share_of_cpu_time_in_use_is_that_of_the_window(
    document: Document, cpu: list[CpuTime | None], share: float | None
) -> None:
    meters = Readings(plan_view(document), Endpoint("unix:none"), [{}, {}], [*cpu])
    window = Window(meters, 0.0, 1.0, lambda done, total, label: None)
    for elapsed_s in (0.0, 1.0):
        asyncio.run(window.tick(elapsed_s))
    assert window.machine_cpu() == share


def test_cpu_time_is_that_of_all_processes() -> None:
    began, end_s = CpuTime.now(), time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    ended = CpuTime.now()
    assert ended.used_s - began.used_s >= 0.05, "the counters have steps of 10 ms"
    # Equal on a machine that is never idle, but for the rounding of differences of large numbers.
    assert ended.all_s - began.all_s > ended.used_s - began.used_s - 0.001
