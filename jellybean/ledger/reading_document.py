"""A reading as JSON text, as the ledger keeps the last one."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import Any

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


def reading_to_text(reading: Reading) -> str:
    """The reading as JSON."""
    document = {
        "at": asdict(reading.at),
        "run": reading.run,
        "serving": reading.serving,
        "plans": [_plan_item(plan) for plan in reading.plans],
        "work": [[*astuple(key), *astuple(work)] for key, work in reading.work.items()],
        "sent": [[*astuple(key), *astuple(sent)] for key, sent in reading.sent.items()],
        "requests": [[*astuple(key), counts] for key, counts in reading.requests.items()],
        "counted": reading.counted,
    }
    return json.dumps(document, separators=(",", ":"))


def reading_from_text(text: str) -> Reading:
    """The reading of such a text."""
    document = json.loads(text)
    return Reading(
        Moment(**document["at"]),
        document["run"],
        tuple(map(_plan, document["plans"])),
        document["serving"],
        {WorkKey(*row[:4]): Work(*row[4:]) for row in document["work"]},
        {SentKey(*row[:6]): Sent(*row[6:]) for row in document["sent"]},
        {RequestKey(workflow, client): tuple(counts) for workflow, client, counts in document["requests"]},
        document["counted"],
    )


def _plan_item(plan: BilledPlan) -> dict[str, Any]:
    prices = [[*tiers, price] for tiers, price in plan.usd_per_gib.items()]
    return {**asdict(plan), "usd_per_gib": prices}


def _plan(item: dict[str, Any]) -> BilledPlan:
    workers = tuple(BilledWorker(**worker) for worker in item["workers"])
    prices = {(up, down): price for up, down, price in item["usd_per_gib"]}
    return BilledPlan(item["hash"], item["workflow"], workers, prices)
