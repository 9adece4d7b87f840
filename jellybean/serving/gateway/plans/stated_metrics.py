"""What a worker states in its metrics, as far as it may.

That is lines of its own name, and counters that time and link allow. A worker's text goes to the
ledger, to Prometheus and to `top` beside those of all others, so it is written anew. A line beyond
what it may state is left out, or repeats its last value, and the other lines stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jellybean.ledger.readings import COUNTS, RUNNING_S, Growth
from jellybean_agent import (
    BYTES_PER_GIB,
    UNKNOWN_SENDER,
    WORKER_FAMILIES,
    LinkView,
    PlanView,
    WorkerView,
)

MAX_TEXT_BYTES = 4 * 2**20
MAX_SERIES = 16_384
# Bytes that a worker may have counted before they leave it: a queue of large messages for a slow link.
QUEUED_BYTES = 2.0**28
# Bytes per second of a link whose bandwidth the plan does not state: a network card of 10 Gbit/s.
FAST_LINK = 1.25e9
# A measured rate may be above the planned one: clocks differ, and a stated bandwidth may be rounded.
ALLOWANCE = 2.0
# Times what may be counted at once. Below it a busy worker may be late; a lie asks for more.
ABSURD = 10.0
_MOST_SECONDS = 10 * 365 * 86400.0  # that a counter can have counted when it is read for the first time
_MOST_GAUGE = 1e12
_MAX_DEVICE = 200  # characters of the words for a device
_LINE = re.compile(rb"([a-z_]+)\{(.*)\} (\S{1,40})")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_ESCAPE = re.compile(r'\\(["\\n])')
_STARTED, _SINCE = (
    "jellybean_started_timestamp_seconds",
    "jellybean_counted_since_timestamp_seconds",
)

_NO_LINE = "states metrics in lines that are none"
_TOO_LONG = f"states more than {MAX_TEXT_BYTES >> 20} MiB of metrics"
_TOO_MANY = "states too many series of metrics"
_NOT_ITS = "states metrics of another worker, or of what the plan does not give it"
_TWICE = "states a series of metrics twice"
_NO_NUMBER = "states metrics that are no finite number, or below 0"
_DECREASES = "states counters that decrease"
_TOO_MUCH = "counts more than time and link allow"


CheckedMetrics = tuple[bytes, Mapping[str, tuple[int, str]]]


@dataclass(slots=True)
class _Series:
    """A series that a worker may state. `key`: name and labels, as they are passed on; `growth`: of a counter.

    `left`: how much a counter may grow at once now.
    """

    key: bytes
    family: str
    growth: Growth | None
    most: float
    stated: float | None = None  # last value that was taken account of
    accepted: float = 0.0  # value that is passed on
    left: float = 0.0
    read_s: float = 0.0  # CLOCK_MONOTONIC
    marks: Mapping[str, float] = field(default_factory=dict)  # when process and counters began, as of `stated`


def link_growth(view: PlanView, tier: str, to_tier: str) -> Growth:
    """Bytes that a worker may send over a link."""
    link = _link(view, tier, to_tier)
    stated = None if link is None else link.bandwidth_bytes_per_s
    return Growth(QUEUED_BYTES, ALLOWANCE * (stated or FAST_LINK))


def link_cost_growth(view: PlanView, tier: str, to_tier: str) -> Growth:
    """The same in USD."""
    link = _link(view, tier, to_tier)
    return link_growth(view, tier, to_tier).times(0.0 if link is None else link.price_usd_per_gib / BYTES_PER_GIB)


def _link(view: PlanView, tier: str, to_tier: str) -> LinkView | None:
    return next(
        (link for link in view.links if (link.upstream_tier, link.downstream_tier) == (tier, to_tier)),
        None,
    )


class StatedMetrics:
    """The metrics of one worker of a plan, reading by reading. Not thread-safe."""

    def __init__(self, view: PlanView, worker: WorkerView, max_series: int = MAX_SERIES) -> None:
        self._view, self._worker, self._max_series = view, worker, max_series
        self._variants = view.variants_of(worker.name)
        self._tiers = {link.downstream_tier for link in view.links} | {one.tier for one in view.workers.values()}
        self._senders = {*view.workers, *view.plan_variants, "gateway", UNKNOWN_SENDER}
        self._by_key: dict[bytes, _Series] = {}
        self._as_stated: dict[bytes, _Series] = {}  # by name and labels as the worker writes them
        self._read_s = -math.inf

    def checked(self, text: bytes, asked_s: float, now_s: float) -> CheckedMetrics:
        """What it may state, in Prometheus' text format; and what not: kind -> count and an example.

        `asked_s`, `now_s`: when it was asked, and when it has answered (CLOCK_MONOTONIC).
        """
        if len(text) > MAX_TEXT_BYTES:
            return b"", {_TOO_LONG: (1, "")}
        refused: dict[str, tuple[int, str]] = {}

        def refuse(kind: str, line: bytes) -> None:
            count, example = refused.get(kind, (0, line[:200].decode("utf-8", "replace")))
            refused[kind] = count + 1, example

        values: dict[bytes, float] = {}
        for line in text.splitlines():
            if line and not line.startswith(b"#") and (kind := self._read(line, values)):
                refuse(kind, line)
        families = ((self._by_key[key].family, value) for key, value in values.items())
        marks = {family: value for family, value in families if family in (_STARTED, _SINCE)}
        for key, value in values.items():
            series = self._by_key[key]
            if series.growth is not None:
                values[key], kind = self._grown(series, series.growth, value, marks, (asked_s, now_s))
                if kind:
                    refuse(kind, b"%s %r" % (key, value))
        self._read_s = now_s
        return self._text(values), refused

    def _read(self, line: bytes, values: dict[bytes, float]) -> str:
        """Add the value of a line; returns what is wrong with it. What is not known here is left out."""
        match = _LINE.fullmatch(line)
        if match is None:
            return _NO_LINE
        stated = line[: match.end(2) + 1]
        series = self._as_stated.get(stated) or self._new(stated, match[1].decode(), match[2])
        if isinstance(series, str):
            return series
        if series.key in values:
            return _TWICE
        value = _number(match[3])
        if not 0.0 <= value < math.inf:
            return _NO_NUMBER
        if value > series.most:
            return _TOO_MUCH
        values[series.key] = value
        return ""

    def _new(self, stated: bytes, name: str, label_text: bytes) -> _Series | str:
        """A series that is new, or why it is left out: empty if its metric is not known here."""
        family_name = name.removesuffix("_total")
        family, labels = WORKER_FAMILIES.get(family_name), _labels(label_text)
        if family is None or family.is_counter != name.endswith("_total"):
            return ""
        if labels is None or labels.keys() != set(family.labels):
            return _NO_LINE
        if not (self._is_of_worker(labels) and self._is_of_operator(labels)):
            return _NOT_ITS
        if len(self._as_stated) >= self._max_series:
            return _TOO_MANY
        pairs = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
        key = f"{name}{{{pairs}}}".encode()
        series = self._by_key.get(key)
        if series is None:
            growth = self._growth(family_name, labels) if family.is_counter else None
            most = _MOST_GAUGE if growth is None else growth.within(_MOST_SECONDS)
            series = self._by_key[key] = _Series(key, family_name, growth, most)
        self._as_stated[stated] = series
        return series

    def _is_of_worker(self, labels: Mapping[str, str]) -> bool:
        """True if the labels beside the operator's are this worker's, and of a few values."""
        worker = self._worker
        return (
            labels.get("worker", labels.get("process")) == worker.name
            and labels.get("tier", worker.tier) == worker.tier
            and labels.get("to_tier", worker.tier) in self._tiers
            and labels.get("outcome", "failed") in ("completed", "failed")
            and labels.get("sender", worker.name) in self._senders
            and re.fullmatch("[0-9]{1,7}", labels.get("batch", "1")) is not None
            and len(labels.get("device", "")) <= _MAX_DEVICE
        )

    def _is_of_operator(self, labels: Mapping[str, str]) -> bool:
        """True if the worker runs this variant of the operator, in whichever workflow of the plan."""
        operator = labels.get("operator", "")
        if not operator:
            return "variant" not in labels  # what is of no operator: its machine, what came too late for any
        variant = self._variants.get(operator)
        return variant is not None and labels.get("variant", variant) == variant

    def _growth(self, family: str, labels: Mapping[str, str]) -> Growth:
        if family in ("jellybean_link_bytes", "jellybean_network_cost_usd"):
            tiers = labels["tier"], labels["to_tier"]
            of_family = link_growth if family == "jellybean_link_bytes" else link_cost_growth
            return of_family(self._view, *tiers)
        if family == "jellybean_cost_usd":
            return RUNNING_S.times(self._worker.price_usd_per_h / 3600.0)
        return RUNNING_S if family.endswith("_seconds") else COUNTS

    def _grown(
        self,
        series: _Series,
        growth: Growth,
        value: float,
        marks: Mapping[str, float],
        times_s: tuple[float, float],
    ) -> tuple[float, str]:
        """The value of a counter that is accepted, and what is wrong with the stated one.

        `times_s`: when the worker was asked, and has answered.
        """
        (asked_s, now_s), before = times_s, series.stated
        if before is None:
            series.stated = series.accepted = value
            series.left, series.read_s, series.marks = growth.at_once, now_s, marks
            return value, ""
        series.left += growth.per_s * max(0.0, now_s - series.read_s)
        series.read_s = now_s
        counts_anew, has_restarted = (marks.get(mark) != series.marks.get(mark) for mark in (_SINCE, _STARTED))
        series.marks = marks
        if value < before and not counts_anew:
            if not has_restarted:  # two readings at once may come in any order
                return series.accepted, "" if asked_s < self._read_s else _DECREASES
            if _SINCE in marks:  # its file has lost its last seconds: nobody counts anything for that
                series.stated, series.accepted = value, min(value, series.accepted)
                return series.accepted, ""
            counts_anew = True
        return self._granted(series, growth, value, 0.0 if counts_anew else before, anew=counts_anew)

    def _granted(
        self, series: _Series, growth: Growth, value: float, before: float, *, anew: bool
    ) -> tuple[float, str]:
        """The value of a counter that has grown from `before`: by as much as is left, the rest later.

        What is far beyond that is none of its growth, then or later.
        """
        grown, accepted = value - before, 0.0 if anew else series.accepted
        is_absurd = grown > ABSURD * (growth.at_once + series.left)
        granted = 0.0 if is_absurd else min(grown, series.left)
        series.stated = value if is_absurd or granted == grown else before + granted
        series.accepted = value if granted == grown and accepted == before else accepted + granted
        series.left = min(series.left - granted, growth.at_once)
        return series.accepted, "" if granted == grown else _TOO_MUCH

    def _text(self, values: Mapping[bytes, float]) -> bytes:
        """These series, family by family."""
        families: dict[str, list[bytes]] = {}
        for key, value in values.items():
            families.setdefault(self._by_key[key].family, []).append(b"%s %s\n" % (key, repr(value).encode()))
        parts = []
        for name, lines in families.items():
            family = WORKER_FAMILIES[name]
            stated, kind = (f"{name}_total", "counter") if family.is_counter else (name, "gauge")
            parts += [f"# HELP {stated} {family.text}\n# TYPE {stated} {kind}\n".encode(), *lines]
        return b"".join(parts)


def _number(text: bytes) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _labels(text: bytes) -> dict[str, str] | None:
    """The labels in braces; None if they are not well formed, or one comes twice."""
    try:
        stated = text.decode()
    except UnicodeDecodeError:
        return None
    labels: dict[str, str] = {}
    at = 0
    while at < len(stated):
        match = _LABEL.match(stated, at)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], match[2])
        at = match.end()
    return labels


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
