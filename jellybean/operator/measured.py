"""What a gateway measures, for the status of its resource: read from its metrics, through the API server."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jellybean.serving.top.top import Scrape, parse, top_of, worst_p99_s
from jellybean_k8s import METRICS_PORT, Cluster, ClusterError, DeployError, gateway_pod

WINDOW_S = 60.0  # between two readings: a status that changes more often costs the API server more than it tells
_DIGITS = 3
_FORBIDDEN = 403
_COST = "jellybean_gateway_cost_usd_total"


@dataclass
class MeasuredFigures:
    """Reads a gateway's metrics once in a while, and keeps the figures of the last time in between.

    `clock`: monotonic seconds; `now`: the time of day; `log`: told once if the metrics may not be read.
    """

    clock: Callable[[], float]
    now: Callable[[], datetime.datetime]
    log: Callable[[str], None]
    window_s: float = WINDOW_S
    _pod: str = ""
    _last: Scrape | None = None
    _figures: dict[str, Any] | None = None
    _tried_s: float = field(default=float("-inf"))
    _told: str = ""

    def read(self, cluster: Cluster, app: str) -> dict[str, Any] | None:
        """The figures of the last time, as in the status; None while there are none."""
        now_s = self.clock()
        if now_s - self._tried_s >= self.window_s:
            self._tried_s = now_s
            try:
                self._figures = self._measure(cluster, app, now_s)
            except DeployError as error:
                self._last, self._figures = None, None
                self._tell(error)
        return self._figures

    def _measure(self, cluster: Cluster, app: str, now_s: float) -> dict[str, Any] | None:
        """Figures since the last reading; None if that was of another pod. DeployError if it does not answer."""
        pod = gateway_pod(cluster, app)[0]["metadata"]["name"]
        found = Scrape(now_s, parse(cluster.pod_http(pod, METRICS_PORT, "/metrics")))
        before, self._last = self._last if pod == self._pod else None, found
        self._pod = pod
        return None if before is None else self._difference(before, found)

    def _difference(self, before: Scrape, now: Scrape) -> dict[str, Any]:
        top, p99_s = top_of(before, now), worst_p99_s(before, now)
        paid_usd = now.total(_COST) - before.total(_COST)
        cost = paid_usd / top.window_s * 3600 if paid_usd >= 0 else top.usd_per_h  # it began again with a restart
        when = self.now().astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "requestsPerSecond": _rounded(top.offered_per_s),
            "latencyP99Seconds": None if p99_s is None else _rounded(p99_s),
            "costUsdPerHour": _rounded(cost),
            "at": when,
        }

    def _tell(self, error: DeployError) -> None:
        """Log why nothing is measured, once until the reason changes."""
        hint = "; the operator's Role lacks pods/proxy: update the chart" if _is_forbidden(error) else ""
        text = f"nothing is measured: {error}{hint}"
        if text != self._told:
            self.log(text)
        self._told = text


def _is_forbidden(error: DeployError) -> bool:
    return isinstance(error, ClusterError) and error.status == _FORBIDDEN


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
