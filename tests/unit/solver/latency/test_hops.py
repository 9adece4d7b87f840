"""The share of messages between processes in a request's time with zero queueing delay."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean.planning.simulation import unloaded_latency_s
from jellybean.report.plans.plan_view import hop_lines
from jellybean_solver import Arrivals, Edge, Link, Plan, Route, ServiceTime, Source, unqueued_and_hops_s
from tests.property.simulator.plans import chain, operator, plan

FIXED = ServiceTime(0.1, 0.1)


def linked(hop_s: float) -> Plan:
    """An operator at the edge, one behind a link on another worker, and one beside that."""
    names = ["look", "read", "sum"]
    upstreams = ["image", "look", "read"]
    operators = [
        operator(name, [Edge(before, name)], 1.0, {"w": FIXED}, {after: 1000.0})
        for name, before, after in zip(names, upstreams, ["read", "sum", ""], strict=True)
    ]
    source = Source("image", "edge", 1.0, 500.0, Arrivals.PERIODIC)
    route = Route(1.0, {"look": "w-1", "read": "w-2", "sum": "w-2"})
    tiers = {"w-1": "edge", "w-2": "cloud"}
    return plan([source], operators, [route], tiers, [Link("edge", "cloud", 0.0, 1e5, 0.02)], hop_s=hop_s)


@pytest.mark.parametrize("hop_s", [0.0, 0.003, 0.5])
def test_the_time_is_that_of_the_simulator(hop_s: float) -> None:
    for each, messages in ((chain([FIXED, FIXED], 1.0, Arrivals.PERIODIC, hop_s=hop_s), 3), (linked(hop_s), 3)):
        total_s, hops_s = unqueued_and_hops_s(each)
        assert total_s == pytest.approx(unloaded_latency_s(each, requests=5))
        assert hops_s == pytest.approx(messages * hop_s)


def test_a_plan_says_when_hops_decide_its_latency() -> None:
    assert hop_lines(linked(0.003)) == ()
    (line,) = hop_lines(linked(0.5))
    assert line == (
        "messages between processes take 1.50 s of the 1.83 s of a request on the most used route with zero queueing "
        "delay: hop, 500 ms each, decides its latency"
    )
    assert hop_lines(dataclasses.replace(linked(0.5), hop_s=0.0)) == ()
