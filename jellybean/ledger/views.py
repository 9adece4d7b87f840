"""SQL views of the ledger for other programs: what its tables sum to by day, in columns that need no joins.

They are views and not tables, so that they never disagree with the lines. Amounts are in USD, times in seconds, days in
UTC. SQLite and PostgreSQL differ in how they write a day; nothing else of another dialect is used: SQLite has square
roots and powers only where it was built with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text

from jellybean.ledger.columns import KINDS, LATENCY_BOUNDS_S

_FAILED = " + ".join(kind for kind in KINDS if kind != "answered")
_BOUNDS = " ".join(f"WHEN {bucket} THEN {bound_s}" for bucket, bound_s in enumerate(LATENCY_BOUNDS_S))

Day = Callable[[str], str]  # column with a Unix time -> its day, as SQL


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, its columns, and its query, given how the dialect writes a day."""

    name: str
    columns: tuple[str, ...]
    query: Callable[[Day], str]


def _cost(keys: str, where: str = "") -> Callable[[Day], str]:
    """Workers and traffic by day, workflow, plan and `keys` of the lines of work; `where`: which values bytes have."""
    of_work, of_sent = (f", {names}" if names else "" for names in (keys, where or keys))

    def query(day: Day) -> str:
        return f"""
            SELECT day, workflow, plan{of_work}, SUM(completed) AS completed, SUM(failed) AS failed,
                SUM(busy_s) AS busy_s, SUM(workers_usd) AS workers_usd, SUM(traffic_usd) AS traffic_usd,
                SUM(workers_usd) + SUM(traffic_usd) AS usd
            FROM (
                SELECT {day("begin_s")} AS day, workflow, plan{of_work}, completed, failed, busy_s,
                    usd AS workers_usd, 0.0 AS traffic_usd
                FROM ledger_work
                UNION ALL
                SELECT {day("begin_s")} AS day, workflow, plan{of_sent}, 0.0 AS completed, 0.0 AS failed,
                    0.0 AS busy_s, 0.0 AS workers_usd, usd AS traffic_usd
                FROM ledger_sent
            ) AS lines
            GROUP BY day, workflow, plan{of_work}"""

    return query


def _requests(day: Day) -> str:
    return f"""
        SELECT {day("begin_s")} AS day, workflow, plan, client, SUM(received) AS received, SUM(answered) AS answered,
            SUM({_FAILED}) AS failed, SUM(usd) AS usd,
            SUM(answered_us) / 1000000.0 / NULLIF(SUM(answered), 0) AS mean_latency_s
        FROM ledger_requests
        GROUP BY {day("begin_s")}, workflow, plan, client"""


def _latency(day: Day) -> str:
    """Percentiles of the histogram: the bound of the bucket in which the answer at this share of all lies."""
    columns = ", ".join(
        f"MIN(CASE WHEN reached >= {share} * total THEN bound_s END) AS {name}"
        for name, share in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99))
    )
    return f"""
        SELECT day, workflow, plan, MAX(total) AS answers, {columns}
        FROM (
            SELECT day, workflow, plan, bound_s, SUM(answers) OVER own AS total,
                SUM(answers) OVER (PARTITION BY day, workflow, plan ORDER BY bucket) AS reached
            FROM (
                SELECT {day("begin_s")} AS day, workflow, plan, bucket, CASE bucket {_BOUNDS} END AS bound_s,
                    SUM(answers) AS answers
                FROM ledger_latencies
                GROUP BY {day("begin_s")}, workflow, plan, bucket
            ) AS buckets
            WINDOW own AS (PARTITION BY day, workflow, plan)
        ) AS running
        GROUP BY day, workflow, plan"""


def _accuracy(day: Day) -> str:
    return f"""
        SELECT {day("at_s")} AS day, workflow, plan, selection, site, client, COUNT(*) AS answers,
            COUNT(correct) AS labels, COALESCE(SUM(correct), 0.0) AS correct,
            100.0 * SUM(correct) / NULLIF(COUNT(correct), 0) AS accuracy
        FROM ledger_answers
        GROUP BY {day("at_s")}, workflow, plan, selection, site, client"""


def _events(day: Day) -> str:
    return f"SELECT {day('at_s')} AS day, at_s, run, kind, plan, note FROM ledger_events"


_SUMS = ("completed", "failed", "busy_s", "workers_usd", "traffic_usd", "usd")
_OF_PLAN = ("day", "workflow", "plan")
VIEWS = (
    View("jellybean_cost_by_day", (*_OF_PLAN, *_SUMS), _cost("")),
    View(
        "jellybean_cost_by_operator",
        (*_OF_PLAN, "operator", "variant", "tier", "site", *_SUMS),
        _cost("operator, variant, tier, site"),
    ),
    View(
        "jellybean_cost_by_worker",
        (*_OF_PLAN, "worker", "tier", "site", *_SUMS),
        _cost("worker, tier, site", "sender, tier, site"),
    ),
    View(
        "jellybean_requests_by_day",
        (*_OF_PLAN, "client", "received", "answered", "failed", "usd", "mean_latency_s"),
        _requests,
    ),
    View("jellybean_latency_by_day", (*_OF_PLAN, "answers", "p50_s", "p90_s", "p99_s"), _latency),
    View(
        "jellybean_accuracy_by_day",
        (*_OF_PLAN, "selection", "site", "client", "answers", "labels", "correct", "accuracy"),
        _accuracy,
    ),
    View("jellybean_events", ("day", "at_s", "run", "kind", "plan", "note"), _events),
)


def add_missing_views(connection: Connection) -> None:
    """Make the views that a database has not; a gateway of an earlier version made none."""
    is_sqlite = connection.dialect.name == "sqlite"
    known = set(inspect(connection).get_view_names())
    for view in VIEWS:
        if view.name not in known:
            never = "IF NOT EXISTS " if is_sqlite else ""
            columns = ", ".join(view.columns)
            query = view.query(_sqlite_day if is_sqlite else _postgresql_day)
            connection.execute(text(f"CREATE VIEW {never}{view.name} ({columns}) AS {query}"))


def _sqlite_day(column: str) -> str:
    return f"date({column}, 'unixepoch')"


def _postgresql_day(column: str) -> str:
    return f"CAST(to_timestamp({column}) AT TIME ZONE 'UTC' AS date)"
