"""What gateways measure, for the status of their resource: read from their metrics, through the API server."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jellybean.serving.top.top import Labels, Scrape, parse, top_of, worst_p99_s
from jellybean_k8s import METRICS_PORT, Cluster, ClusterError, DeployError, gateway_pods

WINDOW_S = 60.0  # between two readings: a status that changes more often costs the API server more than it tells
_DIGITS = 3
_FORBIDDEN = 403
_COST = "jellybean_gateway_cost_usd_total"
Samples = Mapping[str, Mapping[Labels, float]]  # name -> labels -> value


@dataclass
class MeasuredFigures:
    """Reads the metrics of a deployment's gateways once in a while, and keeps the figures of the last time in between.

    `clock`: monotonic seconds; `now`: the time of day; `log`: told once if the metrics may not be read.
    """

    clock: Callable[[], float]
    now: Callable[[], datetime.datetime]
    log: Callable[[str], None]
    window_s: float = WINDOW_S
    _last: dict[str, Samples] = field(default_factory=dict)  # by pod
    _last_s: float = 0.0
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
                self._last, self._figures = {}, None
                self._tell(error)
        return self._figures

    def _measure(self, cluster: Cluster, app: str, now_s: float) -> dict[str, Any] | None:
        """Figures since the last reading of the pods there are; None if it was of others. DeployError if one does not
        answer.
        """
        pods = [pod["metadata"]["name"] for pod in gateway_pods(cluster, app)[0]]
        found: dict[str, Samples] = {pod: parse(cluster.pod_http(pod, METRICS_PORT, "/metrics")) for pod in pods}
        before, last_s, self._last, self._last_s = self._last, self._last_s, found, now_s
        both = found.keys() & before.keys()
        if not both:
            return None
        earlier, now = (_together({pod: each[pod] for pod in both}) for each in (before, found))
        return self._difference(Scrape(last_s, earlier), Scrape(now_s, now), len(both))

    def _difference(self, before: Scrape, now: Scrape, pods: int) -> dict[str, Any]:
        """Rates between two readings of so many pods, each of which states the cost of the whole deployment."""
        top, p99_s = top_of(before, now), worst_p99_s(before, now)
        paid_usd = now.total(_COST) - before.total(_COST)
        cost = paid_usd / top.window_s * 3600 if paid_usd >= 0 else top.usd_per_h  # it began again with a restart
        cost /= pods
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


def _together(samples: Mapping[str, Samples]) -> Samples:
    """The samples of several pods, told apart by a label."""
    found: dict[str, dict[Labels, float]] = defaultdict(dict)
    for pod, own in samples.items():
        for name, series in own.items():
            found[name].update({(*labels, ("pod", pod)): value for labels, value in series.items()})
    return found


def _is_forbidden(error: DeployError) -> bool:
    return isinstance(error, ClusterError) and error.status == _FORBIDDEN


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
