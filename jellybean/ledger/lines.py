"""The lines of one interval: the difference of two readings, with what it cost at the prices that held in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jellybean.ledger.columns import COLUMNS, LATENCIES, RECEIVED
from jellybean.ledger.readings import (
    COUNTS,
    RUNNING_S,
    BilledPlan,
    BilledWorker,
    Counts,
    Reading,
    RequestKey,
    Sent,
    SentKey,
    Work,
    WorkKey,
)

_GIB = 2**30
_H = 3600.0


@dataclass(frozen=True, slots=True)
class WorkLine:
    """What one operator did on one worker, and its part of the worker's price for the interval.

    Parts are by the time that operators ran; where none did, by planned load.
    """

    key: WorkKey
    tier: str
    site: str
    completed: float
    failed: float
    busy_s: float
    worker_s: float
    usd: float


@dataclass(frozen=True, slots=True)
class SentLine:
    """Bytes that an operator or a source sent from tier to tier, and their price."""

    key: SentKey
    tier: str
    to_tier: str
    site: str
    sent_bytes: float
    usd: float


@dataclass(frozen=True, slots=True)
class RequestLine:
    """Requests of one client, and its part of the cost of the interval: by requests that arrived.

    In an interval without requests a line with an empty client has the cost, which is nobody's. `counts`: as in
    `columns`.
    """

    key: RequestKey
    counts: Counts
    usd: float


@dataclass(frozen=True, slots=True)
class Interval:
    """The lines between two readings. `seconds`: that are billed; 0 between two runs, when nothing was up."""

    run: str
    plan: str
    begin_unix_s: float
    end_unix_s: float
    seconds: float
    work: tuple[WorkLine, ...]
    sent: tuple[SentLine, ...]
    requests: tuple[RequestLine, ...]
    workflow: str = ""

    @property
    def workers_usd(self) -> float:
        """Cost of workers."""
        return _usd(self.work, ())

    @property
    def links_usd(self) -> float:
        """Cost of bytes over links."""
        return _usd((), self.sent)


def interval(before: Reading, now: Reading) -> Interval:
    """What happened from one reading to the next.

    The plans of `before` cost money until `now`, as a reading is taken whenever one begins or ends; between two runs
    nothing does. A counter that has begun again counts from 0.
    """
    seconds = now.at.seconds_since(before.at) if now.run == before.run else 0.0
    plans = {plan.hash: plan for plan in before.plans}
    work = tuple(_work_lines(before, now, seconds))
    sent = tuple(_sent_lines(before, now, {**plans, **{plan.hash: plan for plan in now.plans}}))
    usd = _usd(work, sent)
    last = before.requests if before.counted == now.counted else {}
    workflow = _workflow(before, now)
    requests = tuple(_request_lines(last, now.requests, usd, workflow))
    begin_s = now.at.unix_s - seconds  # by the clock at the end: a clock that was set does not stretch an interval
    return Interval(before.run, before.serving, begin_s, now.at.unix_s, seconds, work, sent, requests, workflow)


def gateway_interval(before: Reading, now: Reading, run: str) -> Interval:
    """What one of several gateways did from one reading to the next: requests, and bytes of sources.

    No worker is billed by it. `run`: of all gateways together.
    """
    plans = {plan.hash: plan for plan in (*before.plans, *now.plans)}
    sent = tuple(line for line in _sent_lines(before, now, plans) if not line.key.sender)
    last = before.requests if before.counted == now.counted else {}
    workflow = _workflow(before, now)
    requests = tuple(_request_lines(last, now.requests, _usd((), sent), workflow))
    begin_s = now.at.unix_s - (now.at.seconds_since(before.at) if now.run == before.run else 0.0)
    return Interval(run, before.serving, begin_s, now.at.unix_s, 0.0, (), sent, requests, workflow)


def workers_interval(before: Reading, now: Reading, arrived: Mapping[RequestKey, int]) -> Interval:
    """What the workers of several gateways did and cost from one reading to the next, which have no requests.

    `arrived`: requests at all gateways, by which the cost is divided; its lines count none of them again.
    """
    none = (0,) * COLUMNS
    counts = {key: tuple(count if at == RECEIVED else 0 for at in range(COLUMNS)) for key, count in arrived.items()}
    found = interval(before, replace(now, requests=counts, counted=before.counted))
    lines = tuple(replace(line, counts=none) for line in found.requests if line.usd)
    return replace(found, requests=lines)


def _usd(work: tuple[WorkLine, ...], sent: tuple[SentLine, ...]) -> float:
    return math.fsum([*(line.usd for line in work), *(line.usd for line in sent)])


def _workflow(before: Reading, now: Reading) -> str:
    """The workflow that is served; empty if nothing says so."""
    plans = (*(plan for plan in before.plans if plan.hash == before.serving), *now.plans)
    return next(
        (plan.workflow for plan in plans), next((key.workflow for key in (*now.requests, *before.requests)), "")
    )


def _work_lines(before: Reading, now: Reading, seconds: float) -> Iterator[WorkLine]:
    done: dict[tuple[str, str], dict[WorkKey, Work]] = defaultdict(dict)
    passed_s = now.at.seconds_since(before.at)
    for key, work in now.work.items():
        grown = _less(work, before.work.get(key))
        is_plausible = key not in now.newly_read or _can_be_of(grown, passed_s)
        done[key.plan, key.worker][key] = grown if is_plausible else Work(0.0, 0.0, 0.0, work.started)
    for plan in before.plans:
        for worker in plan.workers:
            own = done.pop((plan.hash, worker.name), {})
            yield from _lines_of_worker(plan, worker, own, seconds)
    for own in done.values():  # of plans that began in the interval: they cost from their begin on, which is a reading
        for key, work in own.items():
            if work.completed or work.failed or work.busy_s:
                yield WorkLine(key, "", site_of_worker(key.worker), work.completed, work.failed, work.busy_s, 0.0, 0.0)


def _lines_of_worker(
    plan: BilledPlan, worker: BilledWorker, own: Mapping[WorkKey, Work], seconds: float
) -> Iterator[WorkLine]:
    keys = {key.operator: key for key in own}
    for operator in worker.loads:
        keys.setdefault(operator, WorkKey(plan.hash, operator, worker.variants.get(operator, ""), worker.name))
    busy_s = {operator: own[key].busy_s if key in own else 0.0 for operator, key in keys.items()}
    parts = _parts(busy_s) or _parts({name: worker.loads.get(name, 0.0) for name in keys})
    usd = worker.usd_per_h / _H * seconds
    for operator, key in keys.items():
        work, part = own.get(key, Work(0.0, 0.0, 0.0)), parts.get(operator, 1.0 / len(keys))
        yield WorkLine(
            key, worker.tier, worker.site, work.completed, work.failed, work.busy_s, part * seconds, part * usd
        )


def _parts(amounts: Mapping[str, float]) -> dict[str, float]:
    """Each amount as a share of their sum; empty if they are all 0."""
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()} if total > 0 else {}


def _sent_lines(before: Reading, now: Reading, plans: Mapping[str, BilledPlan]) -> Iterator[SentLine]:
    passed_s = now.at.seconds_since(before.at)
    for key, sent in now.sent.items():
        last = before.sent.get(key)
        since = 0.0 if last is None or _began_again(sent.sent_bytes, sent, last.sent_bytes, last) else last.sent_bytes
        count, plan = sent.sent_bytes - since, plans.get(key.plan)
        if key in now.newly_read and count > now.newly_read[key].within(passed_s):
            continue
        if count > 0:
            price = 0.0 if plan is None else plan.usd_per_gib.get((key.tier, key.to_tier), 0.0)
            tiers = {} if plan is None else plan.tier_by_site  # the key has sites in place of their tiers
            tier, to_tier = (tiers.get(name, name) for name in (key.tier, key.to_tier))
            site = key.tier if key.tier in tiers else ""
            yield SentLine(key, tier, to_tier, site, count, count / _GIB * price)


def _request_lines(
    before: Mapping[RequestKey, Counts], now: Mapping[RequestKey, Counts], usd: float, workflow: str
) -> Iterator[RequestLine]:
    nothing = (0,) * COLUMNS
    counts = {
        key: tuple(max(0, value - last) for value, last in zip(row, before.get(key, nothing), strict=True))
        for key, row in now.items()
    }
    arrived = sum(row[RECEIVED] for row in counts.values())
    for key, row in counts.items():
        if any(row):
            yield RequestLine(key, row, usd * row[RECEIVED] / arrived if arrived else 0.0)
    if not arrived and usd:
        yield RequestLine(RequestKey(workflow, ""), nothing, usd)


def _less(work: Work, last: Work | None) -> Work:
    """The work since the last reading."""
    if last is None or _began_again(work.completed, work, last.completed, last):
        return work
    completed, failed = max(0.0, work.completed - last.completed), max(0.0, work.failed - last.failed)
    busy_s = max(0.0, work.busy_s - last.busy_s)  # a run that a kill ended may be in the last reading
    return Work(completed, failed, busy_s, work.started)


def _can_be_of(work: Work, seconds: float) -> bool:
    """True if one worker can have done this in so many seconds."""
    counts = work.completed + work.failed
    return work.busy_s <= RUNNING_S.within(seconds) and counts <= COUNTS.within(seconds)


def _began_again(value: float, now: Work | Sent, last_value: float, last: Work | Sent) -> bool:
    """True if the counter has begun again since the last reading.

    A smaller value alone does not tell: a file that lost its last seconds with the machine's power goes on below the
    last reading, and what it still has is in the ledger already.
    """
    return now.started != last.started or (not now.started and value < last_value)


def site_of_worker(name: str) -> str:
    """`store-1` of worker `store-1/box-2`; empty for a worker of a tier with one site."""
    return name.rpartition("/")[0]


def latencies(counts: Counts) -> Counts:
    """The answers by latency bucket, of a line's counts."""
    return counts[LATENCIES:]
