"""Prometheus metrics of an operator process, named in docs/metrics.md.

A resource that is gone has no series. Only the leader reconciles, so only its counters move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jellybean_k8s import CONDITION_DEGRADED, CONDITION_DEPLOYED, CONDITION_PLANNED, CONDITION_TYPES

_PREFIX = "jellybean_operator"
_STATUS = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
_DURATIONS_S = (0.05, 0.2, 1.0, 5.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1200.0)  # a search takes a minute, pods ten
_WAITS_S = (0.01, 0.1, 1.0, 5.0, 20.0, 60.0, 300.0, 600.0)
_OF = ("namespace", "name")


class OperatorMetrics:
    """Counters and gauges of one process. `now_unix_s`: seconds since the epoch."""

    def __init__(self, now_unix_s: Callable[[], float] = time.time) -> None:
        """Register the metrics; series without labels of a resource begin at 0."""
        self._now_unix_s, self.registry = now_unix_s, CollectorRegistry()
        own = self.registry
        self._reconciliations = Counter(
            f"{_PREFIX}_reconciliations", "Plannings and deployments that ended.", ("result",), registry=own
        )
        self._durations = Histogram(
            f"{_PREFIX}_reconciliation_seconds", "Their time.", buckets=_DURATIONS_S, registry=own
        )
        self._deployments = Counter(
            f"{_PREFIX}_deployments", "Revisions that were deployed.", ("result",), registry=own
        )
        self._healed = Counter(
            f"{_PREFIX}_healed_objects", "Objects applied again after others' changes.", registry=own
        )
        self._queued = Gauge(f"{_PREFIX}_queued", "Resources that wait for a thread.", registry=own)
        self._waits = Histogram(f"{_PREFIX}_queue_seconds", "Time they waited.", buckets=_WAITS_S, registry=own)
        self._leader = Gauge(f"{_PREFIX}_leader", "1: this process leads.", registry=own)
        self._conditions = Gauge(
            f"{_PREFIX}_resource_condition", "1: True, 0: False, -1: Unknown.", (*_OF, "condition"), registry=own
        )
        self._stale = Gauge(f"{_PREFIX}_resource_stale", "1: an earlier plan serves.", _OF, registry=own)
        self._looked_at = Gauge(
            f"{_PREFIX}_resource_reconciled_timestamp_seconds", "When it was last looked at.", _OF, registry=own
        )
        for family in (self._reconciliations, self._deployments):
            for result in ("succeeded", "failed"):
                family.labels(result)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))

    @contextmanager
    def leading(self) -> Iterator[None]:
        """This process leads within the context."""
        self._leader.set(1)
        try:
            yield
        finally:
            self._leader.set(0)

    def queue(self) -> Callable[[], None]:
        """A resource begins to wait for a thread; call the result once it has one."""
        began_s = time.monotonic()
        self._queued.inc()

        def begin() -> None:
            self._queued.dec()
            self._waits.observe(time.monotonic() - began_s)

        return begin

    def reconciled(self, seconds: float, *, failed: bool) -> None:
        """A reconciliation that was due has ended."""
        self._reconciliations.labels("failed" if failed else "succeeded").inc()
        self._durations.observe(seconds)

    def deployed(self, *, failed: bool) -> None:
        """A deployment made a revision, or tried to."""
        self._deployments.labels("failed" if failed else "succeeded").inc()

    def healed(self, objects: int) -> None:
        """Objects that others had changed were applied again."""
        self._healed.inc(objects)

    def looked_at(self, namespace: str, name: str, conditions: Iterable[Mapping[str, Any]]) -> None:
        """The conditions of a resource after a look at it."""
        statuses = {item["type"]: item["status"] for item in conditions}
        refused = "False" in (statuses.get(CONDITION_PLANNED), statuses.get(CONDITION_DEPLOYED))
        for kind, status in statuses.items():
            self._conditions.labels(namespace, name, kind).set(_STATUS[status])
        self._stale.labels(namespace, name).set(refused and statuses.get(CONDITION_DEGRADED) == "True")
        self._looked_at.labels(namespace, name).set(self._now_unix_s())

    def forget(self, namespace: str, name: str) -> None:
        """A resource is handled no more: it is deleted, or this process ends."""
        for kind in CONDITION_TYPES:
            _remove(self._conditions, (namespace, name, kind))
        for family in (self._stale, self._looked_at):
            _remove(family, (namespace, name))


def _remove(family: Gauge, labels: tuple[str, ...]) -> None:
    try:
        family.remove(*labels)
    except KeyError:
        return  # there was none
