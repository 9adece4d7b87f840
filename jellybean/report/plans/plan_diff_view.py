"""The difference of two plans as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.documents import override_options
from jellybean_solver import (
    HostedModel,
    Plan,
    PlanDiff,
    WorkerChange,
    distinct_durations,
    distinct_usd,
    p99_by_workflow,
)

MAX_FIGURES, MAX_LIST_CHARACTERS = 20, 40  # changed figures that are shown; characters of a list within one line
SHA256_DIGITS = 12
PROFILED = ("operators.", "hop_s")  # starts of the paths of figures that profiles state: times, memory, message sizes
MOST_DIGITS = 12  # significant digits of a changed figure: six, or as many more as show the change
MAX_WORKERS = 20  # up to so many workers have a line each; of more, workers with equal changes share a line


def diff_text(
    diff: PlanDiff, before: str, after: str, latencies: Sequence[str] = (), *, every_figure: bool = False
) -> RenderableType:
    """Cost, accuracy and `latencies`, then changed variants, pools and figures, then the actions on each worker.

    Figures that profiles state are only counted, unless `every_figure`: a new measurement changes all of them.
    """
    if diff.is_empty:
        return Text(f"no difference between {before} and {after}, except possibly worker names", "bold")
    parts: list[RenderableType] = [Text(f"{before} -> {after}", "bold"), Text(f"  {_cost(diff)}")]
    parts += [Text(f"  {line}") for line in latencies]
    if diff.overrides_before != diff.overrides_after:
        parts += [Text(f"  options{_options(diff.overrides_before)} ->{_options(diff.overrides_after)}")]
    parts += [Text(f"  {line}") for line in (*_selection(diff), *_fleet(diff))]
    parts += [Text(f"  {line}") for line in _figures(diff, every_figure)]
    if diff.workers:
        parts.append(_workers(diff))
    return Group(*parts)


def latency_changes(before: Plan, after: Plan) -> Iterator[str]:
    """One line per p99 latency in closed form that differs; only of workflows that have a target in both plans."""
    one, two = p99_by_workflow(before), p99_by_workflow(after)
    for name in sorted(one.keys() & two.keys()):
        if math.isfinite(one[name]) and math.isfinite(two[name]) and not math.isclose(one[name], two[name]):
            of = f" of {name}" if name else ""
            yield f"p99 latency{of} (closed form) {' -> '.join(distinct_durations(one[name], two[name]))}"


def diff_json(diff: PlanDiff) -> dict[str, Any]:
    """The fields of `PlanDiff` as JSON values, and `same`: true if the plans do not differ."""
    return {"same": diff.is_empty, **dataclasses.asdict(diff), "names": dict(diff.names)}


def _options(overrides: Sequence[str]) -> str:
    return override_options(overrides) or " none"


def _cost(diff: PlanDiff) -> str:
    one, two = diff.cost_before, diff.cost_after
    change = two.total_usd_per_h - one.total_usd_per_h
    sign = "-" if change < 0 else "+"
    return (
        f"cost {_usd(one.total_usd_per_h, two.total_usd_per_h)} USD/h ({sign}{formats.usd(abs(change))}; compute "
        f"{_usd(one.compute_usd_per_h, two.compute_usd_per_h)}, network "
        f"{_usd(one.network_usd_per_h, two.network_usd_per_h)}), accuracy "
        f"{formats.accuracy(diff.accuracy_before)} -> {formats.accuracy(diff.accuracy_after)}"
    )


def _usd(before: float, after: float) -> str:
    return " -> ".join(distinct_usd(before, after))


def _selection(diff: PlanDiff) -> list[str]:
    lines = [f"{item.operator}: {item.before or 'none'} -> {item.after or 'none'}" for item in diff.variants]
    lines += _shares(diff)
    for changed in diff.models:
        was, now = ((sha256 or "none")[:SHA256_DIGITS] for sha256 in (changed.sha256_before, changed.sha256_after))
        lines.append(f"{changed.operator} {changed.variant}: another model file, SHA-256 {was} -> {now}")
    for item in diff.placements:
        workers = _change(str(item.workers_before), str(item.workers_after), "worker", item.workers_after)
        rates = _change(formats.rate(item.rate_before_per_s), formats.rate(item.rate_after_per_s))
        batches = (max(item.batch_before, 1), max(item.batch_after, 1))
        batch = f", batches of {batches[0]} -> {batches[1]}" if batches[0] != batches[1] else ""
        what = f"{item.operator} {item.variant}" if item.variant else item.operator
        lines.append(f"{what} in {item.pool}: {workers}, {rates}{batch}")
    return lines


def _shares(diff: PlanDiff) -> Iterator[str]:
    """One line per operator whose variants get other shares of the requests."""
    for name, changes in groupby(diff.shares, key=lambda item: item.operator):
        shares = (f"{item.variant} {_percents(item.before, item.after)}" for item in changes)
        yield f"{name}, share of the requests: {', '.join(shares)}"


def _percents(before: float, after: float) -> str:
    """Shares before and after, with decimals if they show a change."""
    texts = formats.percent(before), formats.percent(after)
    if texts[0] == texts[1]:
        texts = f"{formats.plain(before * 100.0)} %", f"{formats.plain(after * 100.0)} %"
    return " -> ".join(texts)


def _change(before: str, after: str, unit: str = "", count: int = 1) -> str:
    """`1 -> 2 workers`; where nothing changes `1 worker`."""
    figures = after if before == after else f"{before} -> {after}"
    return f"{figures} {formats.plural(unit, count)}" if unit else figures


def _fleet(diff: PlanDiff) -> list[str]:
    lines = [
        f"pool {item.pool} ({item.tier}): {item.before} -> {formats.count(item.after, 'worker')} "
        f"({item.after - item.before:+d})"
        for item in diff.pools
    ]
    for item in diff.links:
        lines.append(
            f"link {item.upstream_tier} -> {item.downstream_tier}: {formats.byte_rate(item.bytes_before_per_s)} -> "
            f"{formats.byte_rate(item.bytes_after_per_s)}, "
            f"{_usd(item.cost_before_usd_per_h, item.cost_after_usd_per_h)} USD/h"
        )
    if diff.routes_changed:
        lines.append("routes: paths or shares of requests change")
    return lines


def _figures(diff: PlanDiff, every: bool) -> Iterator[str]:
    """Changed figures, those that profiles state last; without `every` these are counted, and of others most listed."""
    measured = [item for item in diff.figures if item.figure.startswith(PROFILED)]
    stated = [item for item in diff.figures if item not in measured]
    for item in (*stated, *measured) if every else stated[:MAX_FIGURES]:
        yield f"{item.figure}: {' -> '.join(_values(item.before, item.after))}"
    if every:
        return
    counts = (len(stated) - MAX_FIGURES, "more figure"), (len(measured), "profiled figure")
    if hidden := [formats.count(number, what) for number, what in counts if number > 0]:
        yield f"{' and '.join(hidden)} also changed (--all lists them)"


def _values(before: object, after: object) -> tuple[str, str]:
    """A figure before and after, with as many digits as show that it changed."""
    for digits in range(6, MOST_DIGITS):
        values = _value(before, digits), _value(after, digits)
        if values[0] != values[1]:
            return values
    return _value(before, MOST_DIGITS), _value(after, MOST_DIGITS)


def _value(value: object, digits: int) -> str:
    if isinstance(value, list):
        return "changed values" if len(str(value)) > MAX_LIST_CHARACTERS else str(value)
    return "none" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _workers(diff: PlanDiff) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    table.add_column("worker", overflow="fold")
    table.add_column("load", overflow="fold")
    table.add_column("unload", overflow="fold")
    rows: Counter[tuple[str, str, str]] = Counter()
    many = len(diff.workers) > MAX_WORKERS
    for change in diff.workers:
        name = f"{change.pool}: {_action(change)}" if many else _named(change)
        rows[name, "\n".join(map(_model, change.load)), "\n".join(map(_name, change.unload))] += 1
    for (name, load, unload), count in rows.items():
        table.add_row(Text(f"{name} x {count}" if count > 1 else name), Text(load or "-"), Text(unload or "-"))
    return table


def _action(change: WorkerChange) -> str:
    return "start" if change.before is None else "stop" if change.after is None else "change"


def _named(change: WorkerChange) -> str:
    """Name of a changed worker in plan A, with its name in plan B if that is different."""
    if change.before is None:
        return f"start {change.after} of B"
    if change.after is None:
        return f"stop {change.before}"
    return change.before if change.before == change.after else f"{change.before} ({change.after} in B)"


def _name(model: HostedModel) -> str:
    return f"{model.operator} {model.variant}"


def _model(model: HostedModel) -> str:
    sha256 = f", {model.sha256[:SHA256_DIGITS]}" if model.sha256 else ""
    memory = f", {formats.size(model.memory_bytes)}" if model.memory_bytes else ""
    return f"{_name(model)}{memory}{sha256}"
