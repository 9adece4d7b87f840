"""A made-up ledger: counters of a fleet that grow by chance, a new plan each week, and answers with labels."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlalchemy import insert

from jellybean.ledger import tables
from jellybean.ledger.columns import COLUMNS, KINDS, LATENCIES, RECEIVED
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.readings import (
    BilledPlan,
    BilledWorker,
    Moment,
    Reading,
    RequestKey,
    Sent,
    SentKey,
    Work,
    WorkKey,
)

DAY_S, WEEK_S, BEGIN_S = 86_400.0, 7 * 86_400.0, 20_000 * 86_400.0
CLIENTS = ("ann", "bob", "carol")
WORKFLOW, OUTPUT_BYTES = "flow", 40


@dataclass(frozen=True, slots=True)
class FleetShape:
    """How many operators run on how many workers, every fourth in the cloud."""

    operators: int
    workers: int


@dataclass
class MadeUpFleet:
    """Counters of a run, as a gateway reads them."""

    shape: FleetShape
    done: int = 0
    rows: dict[RequestKey, list[int]] = field(
        default_factory=lambda: {RequestKey(WORKFLOW, name): [0] * COLUMNS for name in CLIENTS}
    )
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def read(self, at_s: float, requests: int) -> Reading:
        """The reading so many seconds after the begin; since the last one so many requests were answered."""
        self.done += requests
        for _ in range(requests):
            row = self.rows[RequestKey(WORKFLOW, self.rng.choice(CLIENTS))]
            row[RECEIVED] += 1
            row[KINDS["answered"]] += 1
            row[LATENCIES + min(45, int(self.rng.lognormvariate(2.5, 0.3)))] += 1
        plan = made_up_plan(self.shape, plan_hash(at_s))
        work = {
            WorkKey(plan.hash, operator, "v", worker.name): Work(
                float(self.done), 0.0, 0.01 * self.done + number, plan.hash
            )
            for number, worker in enumerate(plan.workers)
            for operator in worker.loads
        }
        sent = {SentKey(plan.hash, "operator-0", "v", "box-0", "edge", "cloud"): Sent(1e6 * self.done, plan.hash)}
        counts = {key: tuple(row) for key, row in self.rows.items()}
        return Reading(Moment(BEGIN_S + at_s, at_s, "boot"), "run", (plan,), plan.hash, work, sent, counts, "file")


def plan_hash(at_s: float) -> str:
    """The hash of the plan of the week."""
    return f"{int(at_s // WEEK_S):064x}"


@cache
def made_up_plan(shape: FleetShape, name: str) -> BilledPlan:
    """A plan of operators that are dealt out to workers."""
    own: Mapping[int, list[str]] = {number: [] for number in range(shape.workers)}
    for operator in range(shape.operators):
        own[operator % shape.workers].append(f"operator-{operator}")
    workers = (
        BilledWorker(
            f"box-{number}", "cloud" if number % 4 == 3 else "edge", "", 0.1,
            dict.fromkeys(names, 0.1), dict.fromkeys(names, "v"),
        )
        for number, names in own.items()
    )  # fmt: skip
    return BilledPlan(name, WORKFLOW, tuple(workers), {("edge", "cloud"): 0.09})


def keep_labelled(ledger: Ledger, count: int, seconds: float) -> None:
    """Keep so many answers, evenly over the time since the begin; every second one has its label, 9 of 10 are right."""
    rows = []
    for number in range(count):
        at_s, has_label = seconds * number / count, number % 2 == 0
        rows.append(
            {
                "client": CLIENTS[number % 3], "id": f"order-{number}", "at_s": BEGIN_S + at_s, "workflow": WORKFLOW,
                "plan": plan_hash(at_s), "selection": "", "site": "",
                "outputs": None if has_label else bytes(OUTPUT_BYTES),
                "correct": float(number % 20 > 1) if has_label else None,
                "labelled_s": BEGIN_S + at_s + DAY_S if has_label else None,
            }
        )  # fmt: skip
    with ledger.changing() as connection:
        connection.execute(insert(tables.answers), rows)
