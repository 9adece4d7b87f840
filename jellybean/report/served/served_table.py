"""What was served in a span of time, predicted beside measured, as a terminal table."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.ledger.amounts import amount_text
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.served.served import Served

MOST_CHANGES = 5  # that are named

Row = tuple[str, str, str]


def served_table(served: Served) -> RenderableType:
    """Answers, failures, cost and accuracy by labels of a span; below it the plans that took over."""
    whose = f"plan {served.plan[:HASH_DIGITS]}, " if served.plan else ""
    title = f"served: {whose}{_moment(served.since_unix_s)} to {_moment(served.until_unix_s)} UTC"
    table = Table("figure")
    for name in ("predicted", "served"):
        table.add_column(name, justify="right")
    for row in served_rows(served):
        table.add_row(*row)
    changes = [
        Text(f"{_moment(one.at_unix_s)} plan {one.plan[:HASH_DIGITS]} took over")
        for one in served.changes[-MOST_CHANGES:]
    ]
    if len(served.changes) > MOST_CHANGES:
        changes.insert(0, Text(f"{served.plans} plans took over, at last:"))
    return Padding(Group(Text(title, "italic"), table, *changes), (1, 0, 0, 2))  # a table's own title is as narrow


def served_rows(served: Served) -> Iterator[Row]:
    """Figure, predicted and served, as text."""
    plan, paid_s = served.predicted, served.paid_s
    missing = formats.MISSING
    rate_per_s = served.answered / paid_s if paid_s else None
    planned_per_s = None if plan is None else plan.answers_per_s
    yield "answered", missing if plan is None else f"{plan.answers:,.0f}", f"{served.answered:,}"
    yield "answered per second", formats.rate(planned_per_s), formats.rate(rate_per_s)
    yield "failed", missing, f"{served.failed:,}"
    yield "cost (USD)", missing if plan is None else amount_text(plan.usd), amount_text(served.usd)
    yield "USD/h", formats.usd(None if plan is None else plan.usd_per_h), formats.usd(served.usd_per_h)
    yield "USD per 1,000", _amount(None if plan is None else plan.usd_per_thousand), _amount(served.usd_per_thousand)
    for line in served.accuracy:
        name = "accuracy by labels" + (f" of {line.name}" if len(served.accuracy) > 1 else "")
        predicted = None if plan is None else plan.accuracy.get(line.name)
        yield name, missing if predicted is None else f"{predicted:.2f} %", f"{line.accuracy:.2f} %"
        yield f"95 % interval, by {formats.count(line.labels, 'label')}", "", f"{line.low:.2f} to {line.high:.2f} %"


def _amount(usd: float | None) -> str:
    return formats.MISSING if usd is None else amount_text(usd)


def _moment(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
