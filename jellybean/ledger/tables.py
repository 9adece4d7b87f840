"""The tables of the ledger: an interval, and its lines of work, bytes and requests.

Lines repeat the interval's begin and plan, so that a question reads one table. Reports of other programs may read them:
the columns are described in docs/ledger.md and only ever added to.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.schema import SchemaItem

from jellybean.ledger.columns import KINDS

VERSION = 1
METADATA = MetaData()
LIVE, MINUTES, HOUR, DAY = "live", "5min", "hour", "day"  # lengths of intervals: as written, and as added up later
_WAITING = text("correct IS NULL")
_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself in a column of this type only

intervals = Table(
    "ledger_intervals",
    METADATA,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("run", String(64), nullable=False),  # which start of serving
    Column("plan", String(64), nullable=False),  # that new requests were served by
    Column("length", String(8), nullable=False),
    Column("begin_s", Float(53), nullable=False),  # Unix time
    Column("end_s", Float(53), nullable=False),
    Column("seconds", Float(53), nullable=False),  # that workers were paid for
    Index("ledger_intervals_begin", "begin_s"),
)


def _lines(name: str, *columns: SchemaItem) -> Table:
    """A table of lines, each of an interval."""
    return Table(
        name,
        METADATA,
        Column("interval", _NUMBER, ForeignKey("ledger_intervals.id"), nullable=False),
        Column("begin_s", _NUMBER, nullable=False),  # whole seconds of Unix time
        Column("workflow", String(128), nullable=False),
        Column("plan", String(64), nullable=False),
        *columns,
        Index(f"{name}_interval", "interval"),
        Index(f"{name}_begin", "begin_s"),
    )


work = _lines(
    "ledger_work",
    Column("operator", String(128), nullable=False),
    Column("variant", String(128), nullable=False),
    Column("worker", String(256), nullable=False),
    Column("tier", String(128), nullable=False),
    Column("site", String(128), nullable=False),
    Column("completed", Float(53), nullable=False),
    Column("failed", Float(53), nullable=False),
    Column("busy_s", Float(53), nullable=False),
    Column("worker_s", Float(53), nullable=False),
    Column("usd", Float(53), nullable=False),
)
sent = _lines(
    "ledger_sent",
    Column("operator", String(128), nullable=False),
    Column("variant", String(128), nullable=False),
    Column("sender", String(256), nullable=False),
    Column("tier", String(128), nullable=False),
    Column("to_tier", String(128), nullable=False),
    Column("site", String(128), nullable=False),
    Column("sent_bytes", Float(53), nullable=False),
    Column("usd", Float(53), nullable=False),
)
requests = _lines(
    "ledger_requests",
    Column("client", String(512), nullable=False),
    Column("received", _NUMBER, nullable=False),
    Column("answered_us", _NUMBER, nullable=False),
    *(Column(kind, _NUMBER, nullable=False) for kind in KINDS),
    Column("usd", Float(53), nullable=False),
)
latencies = _lines(
    "ledger_latencies",
    Column("bucket", Integer, nullable=False),  # number of the histogram's bucket
    Column("answers", _NUMBER, nullable=False),
)
events = Table(
    "ledger_events",
    METADATA,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("at_s", Float(53), nullable=False),  # Unix time
    Column("run", String(64), nullable=False),
    Column("kind", String(16), nullable=False),  # an `EventKind`
    Column("plan", String(64), nullable=False),
    Column("note", Text, nullable=False),
)
answers = Table(  # of requests to which clients gave an id, so that labels may come later
    "ledger_answers",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("client", String(512), nullable=False),
    Column("id", String(256), nullable=False),
    Column("at_s", Float(53), nullable=False),  # Unix time
    Column("workflow", String(128), nullable=False),
    Column("plan", String(64), nullable=False),
    Column("selection", Text, nullable=False),  # variants of the operators of which the plan has several
    Column("site", String(128), nullable=False),
    Column("outputs", LargeBinary),  # by sink, as a serialised InferResponse; none once they are labelled
    Column("correct", Float(53)),  # 0 to 1, by the workflow's metric; none without a label
    Column("labelled_s", Float(53)),
    Index("ledger_answers_id", "id"),
    Index("ledger_answers_at", "at_s"),
    Index(
        "ledger_answers_waiting",
        "number",
        sqlite_where=text("correct IS NULL"),
        postgresql_where=text("correct IS NULL"),
    ),
)
values = Table(  # what the values of requests and answers were like, so that another kind is seen
    "ledger_values",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("begin_s", Float(53), nullable=False),  # Unix time
    Column("seconds", Float(53), nullable=False),
    Column("workflow", String(128), nullable=False),
    Column("plan", String(64), nullable=False),
    Column("port", String(16), nullable=False),  # a `Port`
    Column("name", String(128), nullable=False),  # of the source, or of the operator that answers
    Column("figure", String(16), nullable=False),  # a `Figure` of a tensor
    Column("requests", _NUMBER, nullable=False),  # a sample of them
    Column("mean", Float(53), nullable=False),  # of the figure over these requests
    Column("deviation", Float(53), nullable=False),
    Index("ledger_values_begin", "begin_s"),
)
audits = Table(  # how often served answers were those of the plan's reference
    "ledger_audits",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("begin_s", Float(53), nullable=False),  # Unix time
    Column("seconds", Float(53), nullable=False),
    Column("workflow", String(128), nullable=False),
    Column("plan", String(64), nullable=False),
    Column("site", String(128), nullable=False),
    Column("audits", _NUMBER, nullable=False),  # answers that were compared
    Column("agreed", Float(53), nullable=False),  # sum of their agreements, 0 to 1 each
    Column("shed", _NUMBER, nullable=False),
    Column("lost", _NUMBER, nullable=False),
    Column("selection", Text, nullable=False, server_default=""),  # as in `ledger_answers`
    Index("ledger_audits_begin", "begin_s"),
)
cursor = Table(  # the last reading: what was counted up to it is in the lines
    "ledger_cursor",
    METADATA,
    Column("gateway", String(128), primary_key=True),
    Column("reading", Text, nullable=False),
)
deployments = Table(  # whose workers several gateways use: who bills them, and up to where they are billed
    "ledger_deployments",
    METADATA,
    Column("deployment", String(256), primary_key=True),
    Column("workflow", String(128), primary_key=True),
    Column("holder", String(128), nullable=False),  # of the lease: a gateway, as in `ledger_cursor`
    Column("until_s", Float(53), nullable=False),  # Unix time at which the lease ends
    Column("run", String(64), nullable=False),
    Column("seen", Text, nullable=False),  # gateway -> when it wrote last, as JSON
    Column("reading", Text),  # the last one of the workers
    Column("workers_usd", Float(53), nullable=False),  # cost of the run
    Column("links_usd", Float(53), nullable=False),
)
arrivals = Table(  # requests since the workers were billed last
    "ledger_arrivals",
    METADATA,
    Column("deployment", String(256), primary_key=True),
    Column("workflow", String(128), primary_key=True),
    Column("client", String(512), primary_key=True),
    Column("received", _NUMBER, nullable=False),
)
version = Table("ledger_version", METADATA, Column("version", Integer, primary_key=True))

LINES = (work, sent, requests, latencies)
