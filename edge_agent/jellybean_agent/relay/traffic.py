"""Counters of a relay or a tunnel, and their Prometheus metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jellybean_agent.admission.metrics import admission_metrics
from jellybean_agent.admission.process import Admission
from jellybean_agent.process.metrics import certificate_metrics
from jellybean_agent.security.certificates import CertificateFolder

TO_WORKER, FROM_WORKER = "to_worker", "from_worker"
_MOST_REASONS = 1024  # that are kept


class Traffic:
    """What went through a process, by worker and direction: of the bytes, and of who connected to whom."""

    def __init__(self) -> None:
        self.open: Counter[tuple[str, str]] = Counter()
        self.connections: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.failed_dials: Counter[str] = Counter()

    def begin(self, worker: str, direction: str) -> None:
        """Count a pipe that begins."""
        self.open[worker, direction] += 1
        self.connections[worker, direction] += 1

    def end(self, worker: str, direction: str) -> None:
        """Count a pipe that has ended."""
        self.open[worker, direction] -= 1

    def counter(self, worker: str, direction: str) -> Callable[[int], None]:
        """A function that counts bytes."""
        counts, key = self.bytes, (worker, direction)

        def count(size: int) -> None:
            counts[key] += size

        return count


class TrafficCollector(Collector):
    """Metrics with the prefix `jellybean_relay` or `jellybean_tunnel`. `offers`: idle ones now, by worker."""

    def __init__(
        self,
        process: str,
        traffic: Traffic,
        offers: Callable[[], Mapping[str, int]],
        certificate: CertificateFolder,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self._process, self._traffic, self._offers, self._certificate = process, traffic, offers, certificate

    def collect(self) -> Iterator[Metric]:
        prefix, traffic, labels = f"jellybean_{self._process}", self._traffic, ("worker", "direction")
        now = GaugeMetricFamily(f"{prefix}_connections_open", "Connections piped now.", labels=labels)
        began = CounterMetricFamily(f"{prefix}_connections", "Connections piped.", labels=labels)
        moved = CounterMetricFamily(f"{prefix}_bytes", "Bytes piped.", labels=labels)
        for metric, counts in ((now, traffic.open), (began, traffic.connections), (moved, traffic.bytes)):
            for key, count in sorted(counts.copy().items()):
                metric.add_metric(key, count)
        offers = GaugeMetricFamily(f"{prefix}_offers", "Idle connections of a worker's tunnel.", labels=("worker",))
        for worker, number in self._offers().items():
            offers.add_metric((worker,), number)
        refused = CounterMetricFamily(f"{prefix}_refusals", "Connections that were refused.", labels=("reason",))
        for reason, count in sorted(traffic.refusals.copy().items()):
            refused.add_metric((reason,), count)
        failed = CounterMetricFamily(f"{prefix}_dials_failed", "Connections that failed.", labels=("target",))
        for target, count in sorted(traffic.failed_dials.copy().items()):
            failed.add_metric((target,), count)
        yield from (now, began, moved, offers, refused, failed)
        yield from certificate_metrics(self._process, self._certificate)
        if self._admission is not None:
            yield from admission_metrics(self._process, self._admission)


class ReasonLog:
    """Logs why something fails once, until the reason changes or it has succeeded."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._last = log, dict[tuple[str, str], str]()

    def failed(self, who: str, kind: str, text: str, level: int = logging.WARNING) -> None:
        """Log a failure of a kind, unless the last of this kind was the same."""
        if self._last.get((who, kind)) == text:
            return
        if len(self._last) >= _MOST_REASONS:
            self._last.pop(next(iter(self._last)))
        self._last[who, kind] = text
        self._log.log(level, "%s", text)

    def succeeded(self, who: str) -> bool:
        """Forget the failures; True if there were any."""
        found = [key for key in self._last if key[0] == who]
        for key in found:
            del self._last[key]
        return bool(found)
