"""What a question about the ledger is restricted to: a span of time, and one plan."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, Table

PERIODS_S = {"day": 86_400, "hour": 3_600}
_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d %H:00"}


def day_or_hour(period: str, number: float) -> str:
    """The name of the day or hour of this number since 1970, in UTC. `period`: of `PERIODS_S`."""
    return datetime.datetime.fromtimestamp(number * PERIODS_S[period], datetime.UTC).strftime(_FORMATS[period])


@dataclass(frozen=True, slots=True)
class Span:
    """From `since_s` (included) to `until_s`, Unix times; of the plan with the hash `plan`, empty: of all plans."""

    since_s: float = -math.inf
    until_s: float = math.inf
    plan: str = field(default="", kw_only=True)

    def of(self, query: Select[Any], table: Table) -> Select[Any]:
        """The query about this span only, by a table with `begin_s` and `plan`."""
        query = self.over_time(query, table)
        return query.where(table.c.plan == self.plan) if self.plan else query

    def over_time(self, query: Select[Any], table: Table, time: str = "begin_s") -> Select[Any]:
        """The query about this span of time, whatever the plan. `time`: the column with the Unix time."""
        if math.isfinite(self.since_s):
            query = query.where(table.c[time] >= self.since_s)
        return query.where(table.c[time] < self.until_s) if math.isfinite(self.until_s) else query
