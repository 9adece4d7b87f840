"""The ledger's intervals beside what the plan predicts of them."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from jellybean.ledger import (
    COLUMNS,
    RECEIVED,
    BilledPlan,
    BilledWorker,
    Ledger,
    Moment,
    Reading,
    RequestKey,
    Work,
    WorkKey,
)
from jellybean.ledger.queries.plan_counts import plan_counts
from jellybean.report.drift.drift_watch import DriftWatch, Observation
from jellybean.report.drift.served_figures import observations
from jellybean_solver import Plan
from tests import report_plans as plans

BEGIN_S, INTERVAL_S, HASH = 1_000_000.0, 10.0, "p"


def serve(
    path: Path, plan: Plan, intervals: int, *, rate: float = 1.0, slower: str = "", children: float = 1.0
) -> Ledger:
    """A ledger of the plan's run: with `rate` times its requests, a worker 1.5 times slower, more children."""
    rng = random.Random(7)
    ledger = Ledger(f"sqlite:///{path}", "gateway")
    billed = BilledPlan(HASH, plan.name, tuple(_billed(plan, worker.name) for worker in plan.workers), {})
    row, done = [0] * COLUMNS, defaultdict(lambda: [0.0, 0.0])
    below = {edge.downstream for operator in plan.operators for edge in operator.inputs if edge.kind.value == "fan_out"}
    for number in range(intervals + 1):
        if number:
            row[RECEIVED] += round(plan.sources[0].rate_per_s * rate * INTERVAL_S * rng.uniform(0.95, 1.05))
            for worker in plan.workers:
                for name, per_s in worker.rates_per_s.items():
                    operator = plan.operator_at(name, worker.name)
                    count = per_s * rate * INTERVAL_S * (children if name in below else 1.0)
                    factor = 1.5 if worker.pool == slower else 1.0
                    done[name, operator.variant, worker.name][0] += count
                    done[name, operator.variant, worker.name][1] += (
                        count * factor * operator.mean_request_s(worker.pool)
                    )
        work = {WorkKey(HASH, *key): Work(count, 0.0, busy_s, "s") for key, (count, busy_s) in done.items()}
        at_s = number * INTERVAL_S
        requests = {RequestKey(plan.name, "ann"): tuple(row)}
        ledger.write(Reading(Moment(BEGIN_S + at_s, at_s, "b"), "r", (billed,), HASH, work, {}, requests, "f"))
    return ledger


def _billed(plan: Plan, name: str) -> BilledWorker:
    worker = plan.worker_by_name[name]
    loads = dict.fromkeys(worker.rates_per_s, 0.1)
    variants = {operator: plan.operator_at(operator, name).variant for operator in loads}
    return BilledWorker(name, worker.tier, "", worker.price_usd_per_h, loads, variants)


def seen_in(ledger: Ledger, plan: Plan, plan_hash: str) -> list[Observation]:
    counts = plan_counts(ledger, plan_hash)
    assert counts is not None
    return observations(counts, plan)


@pytest.mark.parametrize("make", [plans.one_worker, plans.digits, plans.large])
def test_a_run_as_planned_is_as_predicted(tmp_path: Path, make) -> None:
    plan = make()
    ledger = serve(tmp_path / "ledger.db", plan, 60)
    seen = seen_in(ledger, plan, HASH)
    names = {one.name for one in seen}
    assert "rate of requests" in names
    assert {
        f"time of {' '.join(dict.fromkeys((operator.name, operator.variant)))} on {pool}"
        for operator in plan.operators
        for pool in operator.service
    } >= {name for name in names if name.startswith("time of")}
    assert DriftWatch().see_all(seen).drifted == ()
    ledger.close()


def test_twice_the_requests_are_named_and_nothing_else(tmp_path: Path) -> None:
    plan = plans.one_worker()
    ledger = serve(tmp_path / "ledger.db", plan, 12, rate=2.0)
    (found,) = DriftWatch().see_all(seen_in(ledger, plan, HASH)).drifted
    assert found.name == "rate of requests"
    assert found.distance == pytest.approx(1.0, abs=0.2)
    assert seen_in(ledger, plan, "another plan") == []
    ledger.close()


def test_a_slower_device_and_more_children_are_named(tmp_path: Path) -> None:
    plan = plans.large()
    slow = serve(tmp_path / "slow.db", plan, 12, slower="hub")
    names = {found.name for found in DriftWatch().see_all(seen_in(slow, plan, HASH)).drifted}
    assert names
    assert all(name.startswith("time of") and name.endswith("on hub") for name in names)
    slow.close()
    many = serve(tmp_path / "many.db", plan, 12, children=2.0)
    names = {found.name for found in DriftWatch().see_all(seen_in(many, plan, HASH)).drifted}
    assert names == {"children of detect_vehicles_and_pedestrians for crop_licence_plates"}
    many.close()
