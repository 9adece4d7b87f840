"""A reading as JSON text, as the ledger keeps the last one."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from operator import attrgetter
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

# `astuple` copies every value deeply, which took a third of the time of writing an interval of 100 operators.
_WORK_KEY, _WORK, _SENT_KEY, _SENT = (
    attrgetter(*(one.name for one in fields(kind))) for kind in (WorkKey, Work, SentKey, Sent)
)
_WORKER_FIELDS = tuple(one.name for one in fields(BilledWorker))


def reading_to_text(reading: Reading) -> str:
    """The reading as JSON."""
    document = {
        "at": asdict(reading.at),
        "run": reading.run,
        "serving": reading.serving,
        "plans": [_plan_item(plan) for plan in reading.plans],
        "work": [[*_WORK_KEY(key), *_WORK(work)] for key, work in reading.work.items()],
        "sent": [[*_SENT_KEY(key), *_SENT(sent)] for key, sent in reading.sent.items()],
        "requests": [[key.workflow, key.client, counts] for key, counts in reading.requests.items()],
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
    workers = [_worker_item(worker) for worker in plan.workers]
    return {"hash": plan.hash, "workflow": plan.workflow, "workers": workers, "usd_per_gib": prices}


def _worker_item(worker: BilledWorker) -> dict[str, Any]:
    return {name: getattr(worker, name) for name in _WORKER_FIELDS}


def _plan(item: dict[str, Any]) -> BilledPlan:
    workers = tuple(BilledWorker(**worker) for worker in item["workers"])
    prices = {(up, down): price for up, down, price in item["usd_per_gib"]}
    return BilledPlan(item["hash"], item["workflow"], workers, prices)
