"""What a run has cost: over plans that replace each other, and workers whose counters begin anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.serving.gateway.plans.cost_so_far import CostAccount
from jellybean_agent import BYTES_PER_GIB


class Plan:
    """A plan's prices, and what the gateway sent over its one link."""

    def __init__(self, usd_per_h: float) -> None:
        link = SimpleNamespace(upstream_tier="edge", downstream_tier="cloud", price_usd_per_gib=BYTES_PER_GIB / 1e6)
        link.bandwidth_bytes_per_s = None
        self.view = SimpleNamespace(
            serving=(SimpleNamespace(price_usd_per_h=usd_per_h),), links=(link,), qualified=lambda name: name
        )
        self.bytes_sent: dict[tuple[str, str, str], int] = {}


def told(worker: str, usd: float) -> bytes:
    return (
        b"# TYPE jellybean_network_cost_usd_total counter\n"
        b'jellybean_network_cost_usd_total{operator="a b",tier="edge",to_tier="cloud",worker="%s"} %r\n'
        b"jellybean_queue 7.0\n" % (worker.encode(), usd)
    )


def test_each_plan_costs_its_own_price_while_it_is_served() -> None:
    now_s = 0.0
    spent = CostAccount(lambda: now_s)
    old, new = Plan(3600.0), Plan(7200.0)
    spent.begin(old)
    now_s = 10.0
    assert spent.workers_usd == pytest.approx(10.0)
    spent.begin(new)  # both are there
    assert spent.price_usd_per_h == pytest.approx(3600.0 + 7200.0)
    now_s = 12.0
    spent.end(old)
    assert spent.price_usd_per_h == pytest.approx(7200.0)
    now_s = 15.0
    assert spent.workers_usd == pytest.approx(12.0 + 5.0 * 2.0)


def test_bytes_of_a_plan_that_is_gone_and_of_a_worker_that_died_stay_counted() -> None:
    spent, old, new = CostAccount(lambda: 0.0), Plan(1.0), Plan(1.0)
    spent.begin(old)
    old.bytes_sent["x", "edge", "cloud"] = 5_000_000
    spent.report(old, [told("w1", 2.0), told("w2", 1.0)], 0.0)
    spent.report(old, [told("w1", 2.5), told("w2", 0.25)], 0.0)  # the second was started again
    assert spent.links_usd == pytest.approx(5.0 + 2.5 + 1.25)
    spent.begin(new)
    spent.end(old)
    spent.report(old, [told("w1", 9.0)], 0.0)  # too late: it was let go
    spent.report(new, [told("w1", 3.0)], 0.0)  # of the same name, in the new plan
    assert spent.links_usd == pytest.approx(5.0 + 2.5 + 1.25 + 3.0)


def test_an_older_answer_that_comes_last_is_no_worker_that_started_again() -> None:
    now_s = 1.0
    spent, plan = CostAccount(lambda: now_s), Plan(1.0)
    spent.begin(plan)
    spent.report(plan, [told("w", 6.0)], asked_s=0.5)
    now_s = 2.0
    spent.report(plan, [told("w", 5.0)], asked_s=0.0)  # asked before, answered after: another worker was slow to answer
    assert spent.links_usd == pytest.approx(6.0)
    spent.report(plan, [told("w", 7.0)], asked_s=1.5)
    assert spent.links_usd == pytest.approx(7.0)


def test_a_counter_with_more_than_a_link_carries_is_billed_from_its_first_reading() -> None:
    """It was counted before this process was there, or by nobody."""
    now_s = 10.0
    spent, plan = CostAccount(lambda: now_s), Plan(1.0)
    spent.begin(plan)
    spent.report(plan, [told("w", 1e9), told("v", 1.0)], now_s)
    assert spent.links_usd == pytest.approx(1.0)
    spent.report(plan, [told("w", 1e9 + 3.0), told("v", 1.0)], now_s)
    assert spent.links_usd == pytest.approx(4.0)


def test_a_counter_that_goes_on_lower_is_not_paid_twice() -> None:
    """Its file lost the last seconds with the machine's power, or its worker wants to be paid for all of it again."""
    spent, plan = CostAccount(lambda: 0.0), Plan(1.0)
    spent.begin(plan)
    since = b'jellybean_counted_since_timestamp_seconds{worker="w"} %d\n'
    for at, usd, total in ((1, 8.0, 8.0), (1, 7.0, 8.0), (1, 7.5, 8.5), (2, 0.5, 9.0)):
        spent.report(plan, [told("w", usd) + since % at], 0.0)
        assert spent.links_usd == pytest.approx(total)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["saw", "sent", "replaced"]), st.floats(0.0, 10.0))))
def test_it_never_shrinks(steps: list[tuple[str, float]]) -> None:
    now_s, before = 0.0, 0.0
    spent, plan = CostAccount(lambda: now_s), Plan(1.0)
    spent.begin(plan)
    for what, value in steps:
        now_s += value
        if what == "saw":
            spent.report(plan, [told("w", value)], now_s)
        elif what == "sent":
            plan.bytes_sent["x", "edge", "cloud"] = plan.bytes_sent.get(("x", "edge", "cloud"), 0) + int(value * 1e6)
        else:
            following = Plan(value)
            spent.begin(following)
            spent.end(plan)
            plan = following
        found = spent.workers_usd + spent.links_usd
        assert found >= before - 1e-9
        before = found
