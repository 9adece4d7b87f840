"""Writes a gateway's intervals: every few seconds, and whenever a plan begins or ends to cost money."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from jellybean.ledger.answers import keep_answers
from jellybean.ledger.audits import keep_audits
from jellybean.ledger.columns import COLUMNS
from jellybean.ledger.compaction import compact
from jellybean.ledger.deployments import Deployment
from jellybean.ledger.errors import LedgerError
from jellybean.ledger.ledger import Ledger
from jellybean.ledger.queries.questions import run_cost
from jellybean.ledger.readings import (
    COUNTS,
    BilledPlan,
    BilledWorker,
    Growth,
    Moment,
    Reading,
    Sent,
    SentKey,
    Work,
    WorkKey,
)
from jellybean.ledger.value_figures import keep_values
from jellybean.serving.gateway.accounting.answer_log import AnswerLog
from jellybean.serving.gateway.accounting.audit_log import AuditLog
from jellybean.serving.gateway.accounting.ledger_metrics import LedgerMetrics
from jellybean.serving.gateway.accounting.serving_log import ServingLog
from jellybean.serving.gateway.accounting.value_log import ValueLog
from jellybean.serving.gateway.plans.current_plan import CurrentPlan
from jellybean.serving.gateway.plans.stated_metrics import link_growth
from jellybean_agent import LiveCounters, PlanView, WorkerView

LOG = logging.getLogger("jellybean.gateway")
INTERVAL_S = 10.0
_COMPACT_S = 300.0
_MOST_UNWRITTEN = 100  # readings while the database is away
_COUNTERS = {
    "jellybean_requests_total": "completed",
    "jellybean_failures_total": "failed",
    "jellybean_busy_seconds_total": "busy_s",
}
_BYTES, _SINCE = "jellybean_link_bytes_total", "jellybean_counted_since_timestamp_seconds"


WorkCounters = Mapping[WorkKey, Work]
SentCounters = Mapping[SentKey, Sent]


class Recorder:
    """Writes down what a gateway's plans, workers and requests counted, from `start` to `close`."""

    def __init__(
        self, ledger: Ledger, log: ServingLog, run: str, plans: CurrentPlan, interval_s: float = INTERVAL_S
    ) -> None:
        """`run`: which start of serving this is."""
        self.log = log
        self.answers, self.values, self.audits, self.metrics = AnswerLog(), ValueLog(), AuditLog(), LedgerMetrics()
        self._ledger, self._run, self._plans, self._interval_s = ledger, run, plans, interval_s
        # Those of all workflows of the process: the first one tells what happens to all of them.
        self.of_process: Callable[[], Sequence[Recorder | None]] = lambda: (self,)
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._compacted_s = -math.inf
        self._has_read = False
        self._known: set[WorkKey | SentKey] = set()  # counters of workers in the last reading that is written
        self._paid_usd: tuple[float, float] | None = None  # by the ledger, for workers and links; None: not known yet
        self._unwritten: list[Reading] = []
        self._lost = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run_forever(), name="ledger")

    async def close(self, *, ends_run: bool = True) -> None:
        """Write the last interval; with `ends_run`, that nothing is served any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write(is_last=ends_run)

    async def end(self, *, has_kept: bool) -> None:
        """Close the database and the file of counters, which nobody uses any more.

        `has_kept`: requests wait on disk, which the file has counted as received.
        """
        await asyncio.to_thread(self._ledger.close)
        self.log.close(is_written=not self._unwritten and not has_kept)

    def lose(self, kept: Mapping[str, int]) -> None:
        """Count what was in flight when the last process was killed. `kept`: client -> requests that wait on disk."""
        self._lost = self.log.lose(kept)
        if self._lost:
            text = "%d requests were in flight when the gateway ended last time: the ledger has them as lost"
            LOG.warning(text, self._lost)

    def _with_events(self, reading: Reading, *, is_last: bool) -> Reading:
        """The reading with what it tells of the process, if it is this recorder that tells events."""
        recorders = self.of_process()
        if not recorders or recorders[0] is not self:
            return replace(reading, tells_events=False)
        lost = sum(one._lost for one in recorders if one is not None)
        note = f"{lost} requests in flight were lost" if lost and not self._has_read else ""
        return replace(reading, is_first=not self._has_read, is_last=is_last, note=note)

    def plans_changed(self) -> None:
        """A plan began or ended to cost money."""
        self._changed.set()

    async def _run_forever(self) -> None:
        while True:
            self._changed.clear()
            await self.write()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):  # `wait_for` of Python 3.11 may lose a cancellation
                    await self._changed.wait()

    async def write(self, read: Mapping[str, Sequence[bytes]] = MappingProxyType({}), *, is_last: bool = False) -> None:
        """Write the interval up to now. What cannot be written now is part of the next interval.

        `read`: plan -> metrics of its workers, of plans that were just read.
        """
        async with self._writing:
            billed = {plan.view.hash: plan for plan in self._plans.billed}
            texts = {
                plan: read[plan] if plan in read else list((await self._plans.read(one)).values())
                for plan, one in billed.items()
            }
            views = [plan.view for plan in billed.values()]
            counts = await asyncio.to_thread(_counters, views, texts)  # thousands of lines in a large fleet
            reading = self._reading(self._plans.served.view, views, *counts)
            seen_usd = self._plans.costs.seen_usd
            reading = self._with_events(reading, is_last=is_last)
            self._has_read = True
            self._add(reading)
            try:
                await _finished_in_thread(self._write_all, reading.at)
                self._plans.costs.settle(self._paid_usd or (0.0, 0.0), seen_usd)
            except LedgerError as error:
                LOG.error("%s; nothing is lost: the next interval has it", error)
            except Exception:
                LOG.exception("an interval of the ledger was not written; the next one has it")

    async def write_answers(self) -> None:
        """Write the answers that were kept since the last interval, as a label for one may follow at once. LedgerError
        if the database cannot be used.
        """
        if not self.answers.is_empty:
            async with self._writing:
                await _finished_in_thread(self._keep_answers, time.time())

    def _add(self, reading: Reading) -> None:
        """Add a reading to those that are not written yet; the last one goes if its time is priced as that before it.

        A reading prices the time that follows it, so the first with new plans must stay.
        """
        if len(self._unwritten) > 1 and self._unwritten[-2].prices == self._unwritten[-1].prices:
            self._unwritten.pop()
        self._unwritten.append(reading)
        del self._unwritten[:-_MOST_UNWRITTEN]
        self.metrics.unwritten = len(self._unwritten)

    def _write_all(self, now: Moment) -> None:
        """Write what is not written yet. LedgerError if the database cannot be used."""
        if self._paid_usd is None and not self._ledger.is_shared:
            self._paid_usd = run_cost(self._ledger, self._run, self._plans.served.view.served_name)
        while self._unwritten:
            self._write_reading(self._unwritten[0])
            written = self._unwritten.pop(0)
            billed = {plan.hash for plan in written.plans}  # the ledger forgets the counters of others
            self._known = {key for key in (*self._known, *written.work, *written.sent) if key.plan in billed}
            self.metrics.unwritten, self.metrics.written_unix_s = len(self._unwritten), now.unix_s
        self._keep_answers(now.unix_s)
        self._keep_values(now.unix_s)
        self._keep_audits(now.unix_s)
        if now.boot_s - self._compacted_s > _COMPACT_S:
            self._compacted_s = now.boot_s
            compact(self._ledger, now.unix_s)

    def _write_reading(self, reading: Reading) -> None:
        """Write one interval; with other gateways, what this one has of it. LedgerError as of `_write_all`."""
        if self._ledger.is_shared:
            written = self._ledger.write_shared(reading)
            self._paid_usd = written.paid_usd
            for one in written.intervals:
                self.metrics.add(one)
            return
        found = self._ledger.write(reading)
        if found is not None:
            self.metrics.add(found)
        if found is not None and found.run == self._run and self._paid_usd is not None:
            self._paid_usd = (self._paid_usd[0] + found.workers_usd, self._paid_usd[1] + found.links_usd)

    def _keep_answers(self, now_unix_s: float) -> None:
        answers = self.answers.take()
        try:
            keep_answers(self._ledger, answers, now_unix_s)
        except LedgerError:
            self.answers.give_back(answers)
            raise

    def _keep_values(self, now_unix_s: float) -> None:
        lines = self.values.take()
        try:
            keep_values(self._ledger, lines, now_unix_s)
        except LedgerError:
            self.values.give_back(lines)
            raise

    def _keep_audits(self, now_unix_s: float) -> None:
        lines = self.audits.take()
        try:
            keep_audits(self._ledger, lines, now_unix_s)
        except LedgerError:
            self.audits.give_back(lines)
            raise

    def _reading(self, serving: PlanView, views: Sequence[PlanView], work: WorkCounters, sent: SentCounters) -> Reading:
        requests = self.log.requests()
        by_hash = {view.hash: view for view in views}
        newly_read: dict[WorkKey | SentKey, Growth] = {key: COUNTS for key in work if key not in self._known}
        for key in sent:
            if key not in self._known:
                newly_read[key] = link_growth(by_hash[key.plan], key.tier, key.to_tier)
        return Reading(
            Moment.now(),
            self._run,
            tuple(map(billed_plan, views)),
            serving.hash,
            work,
            {**sent, **self.log.bytes_by_source()},
            requests,
            self.log.mark,
            newly_read=newly_read,
        )


async def _finished_in_thread(call: Callable[..., None], *arguments: object) -> None:
    """Run `call` in a thread. If cancelled, wait for the thread first, so that two calls never overlap."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def billed_plan(view: PlanView) -> BilledPlan:
    """What a plan pays for."""
    prices = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in view.links}
    return BilledPlan(view.hash, view.served_name, tuple(_billed_worker(view, one) for one in view.serving), prices)


def _billed_worker(view: PlanView, worker: WorkerView) -> BilledWorker:
    variants = {name: worker.variants.get(name, view.operators[name].variant) for name in worker.operators}
    loads = {name: worker.loads.get(name, 0.0) for name in worker.operators}
    site = worker.name.rpartition("/")[0]
    tier = worker.tier if not site else worker.tier.rpartition("-")[0]  # `store` of the site `store-17`
    return BilledWorker(worker.name, tier, site, worker.price_usd_per_h, loads, variants)


def _counters(views: Iterable[PlanView], texts: Mapping[str, Iterable[bytes]]) -> tuple[WorkCounters, SentCounters]:
    """Counters of the workers that answered. `texts`: plan -> the metrics of each."""
    work: dict[WorkKey, Work] = {}
    sent: dict[SentKey, Sent] = {}
    for view in views:
        for text in texts[view.hash]:
            own_work, own_sent = _counters_of_worker(view, text)
            work.update(own_work)
            sent.update(own_sent)
    return work, sent


def _counters_of_worker(view: PlanView, text: bytes) -> tuple[WorkCounters, SentCounters]:
    """Counters of a plan's work and bytes in a worker's metrics (Prometheus' text format).

    Of several workflows, only those of the plan view's own, by its own names.
    """
    started = ""
    counts: dict[WorkKey, dict[str, float]] = defaultdict(dict)
    sent: dict[SentKey, float] = {}
    for name, labels, value in _samples(text):
        if name == _SINCE:
            started = repr(value)
            continue
        if not view.owns(labels["operator"]):
            continue
        plan, operator = view.hash, view.own_name(labels["operator"])
        variant, worker = labels["variant"], labels["worker"]
        if name == _BYTES:
            sent[SentKey(plan, operator, variant, worker, labels["tier"], labels["to_tier"])] = value
        else:
            counts[WorkKey(plan, operator, variant, worker)][_COUNTERS[name]] = value
    work = {
        key: Work(found.get("completed", 0.0), found.get("failed", 0.0), found.get("busy_s", 0.0), started)
        for key, found in counts.items()
    }
    return work, {key: Sent(value, started) for key, value in sent.items()}


def _samples(text: bytes) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """The samples that the ledger needs; the others are not parsed."""
    needed = tuple(name.encode() for name in (*_COUNTERS, _BYTES, _SINCE))
    lines = b"\n".join(line for line in text.splitlines() if line.startswith(needed)) + b"\n"
    for family in text_string_to_metric_families(lines.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def open_recorder(url: str, live: Path, run: str, plans: CurrentPlan, deployment: str = "") -> Recorder:
    """The recorder of a gateway's plans. LedgerError if the database or the file of counters cannot be used.

    `deployment`: name of the gateways that use the same workers; empty: this is the only one.
    """
    shared = Deployment(deployment, plans.served.view.served_name) if deployment else None
    gateway = hashlib.sha256(f"{socket.gethostname()} {live.resolve()}".encode(errors="surrogateescape")).hexdigest()
    ledger = Ledger(url, gateway, shared)
    log = ServingLog(LiveCounters(live, COLUMNS), plans.served.view.served_name)
    recorder = Recorder(ledger, log, run, plans)
    if plans.served.view.workflow:
        recorder.of_process = tuple  # until it is one of the workflows that are served
    plans.log_bytes(log.sent)
    plans.on_billed = recorder.plans_changed
    plans.on_read = recorder.write
    return recorder
