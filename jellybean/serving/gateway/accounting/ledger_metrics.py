"""Prometheus metrics of the ledger: what was written since the gateway started, and what waits to be written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jellybean.ledger.lines import Interval

MOST_CLIENTS = 200  # each with a time series of its own; further ones have one together
OTHER_CLIENTS = "(others)"


class LedgerMetrics:
    """Sums of the intervals that this process has written.

    `unwritten`: readings that wait, as the database is away. `written_unix_s`: when it was written last; None: never.
    """

    def __init__(self) -> None:
        self.unwritten = 0
        self.written_unix_s: float | None = None
        self._by_client: dict[str, float] = {}
        self._by_operator: dict[tuple[str, str], float] = defaultdict(float)

    def add(self, interval: Interval) -> None:
        """Count an interval that was written."""
        for line in interval.requests:
            client = line.key.client
            if client not in self._by_client and len(self._by_client) >= MOST_CLIENTS:
                client = OTHER_CLIENTS
            self._by_client[client] = self._by_client.get(client, 0.0) + line.usd
        for work in interval.work:
            self._by_operator[work.key.operator, work.key.variant] += work.usd
        for sent in interval.sent:
            self._by_operator[sent.key.operator, sent.key.variant] += sent.usd

    def collect(self, names_clients: bool) -> Iterator[Metric]:
        """The metrics; read in another thread than `add` is called in. `names_clients`: also the cost of each."""
        text = "Readings of the counters that wait for the database."
        yield GaugeMetricFamily("jellybean_ledger_unwritten", text, value=self.unwritten)
        if self.written_unix_s is not None:
            text = "When the last interval was written (Unix time)."
            yield GaugeMetricFamily("jellybean_ledger_written_timestamp_seconds", text, value=self.written_unix_s)
        clients = CounterMetricFamily(
            "jellybean_ledger_client_cost_usd", "Cost by client since the gateway started.", labels=("client",)
        )
        for client, usd in list(self._by_client.items()):
            clients.add_metric((client,), usd)
        if names_clients:
            yield clients
        operators = CounterMetricFamily(
            "jellybean_ledger_operator_cost_usd",
            "Cost of workers and bytes by operator or source since the gateway started.",
            labels=("operator", "variant"),
        )
        for key, usd in list(self._by_operator.items()):
            operators.add_metric(key, usd)
        yield operators
