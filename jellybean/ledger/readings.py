"""What a gateway reads of plans, workers and requests at one moment: counters that only grow, and prices in force."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of time: `unix_s` by the wall clock, which may be set; `boot_s` since the machine started, which is not.

    `boot`: which start of the machine that was; empty where the system does not say.
    """

    unix_s: float
    boot_s: float
    boot: str

    @classmethod
    def now(cls) -> Moment:
        """This moment. The clock of `boot_s` goes on while the machine sleeps, and is the same in every process."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""
        return cls(time.time(), time.clock_gettime(clock), boot)

    def seconds_since(self, before: Moment) -> float:
        """Seconds from an earlier moment to this one: by the wall clock only if the machine was started in between."""
        if self.boot == before.boot:
            return max(0.0, self.boot_s - before.boot_s)
        return max(0.0, self.unix_s - before.unix_s)


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter can grow: `at_once`, and in each second."""

    at_once: float
    per_s: float

    def within(self, seconds: float) -> float:
        """The most that it can grow in so many seconds."""
        return self.at_once + self.per_s * seconds

    def times(self, factor: float) -> Growth:
        """The growth of so many times the counter."""
        return Growth(self.at_once * factor, self.per_s * factor)


# No worker does more: a run is one at a time, and takes at least a microsecond. A run under way is counted only now and
# then, and two clocks differ.
RUNNING_S = Growth(60.0, 2.0)
COUNTS = Growth(1e6, 1e6)


@dataclass(frozen=True, slots=True)
class BilledWorker:
    """A worker that a plan pays for.

    `loads`: operator -> planned share of its time. `variants`: operator -> variant.
    """

    name: str
    tier: str
    site: str
    usd_per_h: float
    loads: Mapping[str, float]
    variants: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BilledPlan:
    """A plan that costs money now. `usd_per_gib`: (tier, tier) -> price of the link between them."""

    hash: str
    workflow: str
    workers: tuple[BilledWorker, ...]
    usd_per_gib: Mapping[tuple[str, str], float]

    @property
    def tier_by_site(self) -> Mapping[str, str]:
        """Site -> its tier: `store` of `store-17`."""
        return {worker.site: worker.tier for worker in self.workers if worker.site}


@dataclass(frozen=True, slots=True)
class WorkKey:
    """Whose work a counter counts."""

    plan: str
    operator: str
    variant: str
    worker: str


@dataclass(frozen=True, slots=True)
class Work:
    """Counters of one operator on one worker since they began at `started` (any mark of that time)."""

    completed: float
    failed: float
    busy_s: float
    started: str = ""


@dataclass(frozen=True, slots=True)
class SentKey:
    """Whose bytes a counter counts: `sender` is a worker, or empty for a source's data that the gateway sends."""

    plan: str
    operator: str  # or the source
    variant: str
    sender: str
    tier: str
    to_tier: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes sent since the sender's counter began at `started`."""

    sent_bytes: float
    started: str = ""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Whose requests a row of counters counts; the client is empty without certificates."""

    workflow: str
    client: str


Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """All of it at one moment. `run`: of which start by `up` or `deploy`; `serving`: plan of new requests.

    `requests`: counters in the order of `columns.COLUMNS`; `counted`: a mark of the file that they are in.
    `newly_read`: workers' counters that this process has not read before, and how much each can have grown; what is
    beyond was counted when nobody read it. The last five fields are not kept for the next reading.
    """

    at: Moment
    run: str
    plans: tuple[BilledPlan, ...]
    serving: str
    work: Mapping[WorkKey, Work] = field(default_factory=dict)
    sent: Mapping[SentKey, Sent] = field(default_factory=dict)
    requests: Mapping[RequestKey, Counts] = field(default_factory=dict)
    counted: str = ""
    is_first: bool = False  # of its process
    is_last: bool = False  # of its process, which ends in order
    note: str = ""  # what else is to be said of it
    newly_read: Mapping[WorkKey | SentKey, Growth] = field(default_factory=dict)
    tells_events: bool = True  # False: a reading of another workflow of the same process does

    @property
    def prices(self) -> tuple[object, ...]:
        """What decides how the time from this reading on is priced."""
        return self.run, self.serving, tuple(plan.hash for plan in self.plans)

    def with_unread(self, before: Reading) -> Reading:
        """This reading with the last counters of workers that did not answer, of plans that still cost money.

        Without them the next reading would count all again that they have ever done.
        """
        plans = {plan.hash for plan in self.plans}
        work = {key: work for key, work in before.work.items() if key.plan in plans}
        sent = {key: sent for key, sent in before.sent.items() if key.plan in plans}
        return replace(self, work={**work, **self.work}, sent={**sent, **self.sent})
