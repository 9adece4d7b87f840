"""A durable queue on disk: requests until they are answered, and their answers until clients have taken them.

One SQLite file with a bound on its bytes, ids included, of which a share is reserved for answers. A call that returns
has reached the disk (write-ahead log, full synchronisation). An id is in the table `requests` or in `answers`, never in
both: it moves from one to the other in one transaction, so a request gets one answer, however often it was tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import grpc

from jellybean.ledger.readings import Moment
from jellybean.write_ahead_log import OpenFile, Place, is_of_full_disk, require_no_triggers, use_write_ahead_log
from jellybean_agent import StatusError, describe_error, fits_share, full_disk_text

LOG = logging.getLogger("jellybean.gateway")
MAX_BYTES = 2**30
TAKEN_IDS = 1_000_000  # ids of taken answers that are remembered
ROW_BYTES = 128  # per row, besides its data and its id, which is stored twice (row and index)
_ANSWER_PART = 8  # 1/8 of the bytes is reserved for answers; this is also the size limit of one answer
_TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, inputs BLOB NOT NULL, arrived_s REAL NOT NULL,
    digest BLOB);
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, outputs BLOB, status INTEGER NOT NULL,
    reason TEXT NOT NULL, taken INTEGER NOT NULL DEFAULT 0, answered_s REAL NOT NULL,
    digest BLOB);
CREATE INDEX IF NOT EXISTS taken_answers ON answers (taken, number) WHERE outputs IS NOT NULL;
"""
_ROW = f"{ROW_BYTES} + 2 * LENGTH(CAST(id AS BLOB))"
_REQUEST_BYTES = f"{_ROW} + LENGTH(inputs)"
_ANSWER_BYTES = f"{_ROW} + LENGTH(CAST(reason AS BLOB)) + COALESCE(LENGTH(outputs), 0)"
_BYTES = f"""
SELECT (SELECT COALESCE(SUM({_REQUEST_BYTES}), 0) FROM requests), (SELECT COUNT(*) FROM requests),
    (SELECT COALESCE(SUM({_ANSWER_BYTES}), 0) FROM answers)
"""
_BYTES_BY_ID = f"""
SELECT id, {_REQUEST_BYTES}, 0 FROM requests UNION ALL SELECT id, {_ANSWER_BYTES}, 1 FROM answers WHERE NOT taken
"""
_HELD_BACK = """
CREATE TEMP TABLE held_back (client TEXT, number INTEGER, PRIMARY KEY (client, number)) WITHOUT ROWID
"""
_LOCK_TIMEOUT_S = 5.0  # for a lock that another process holds, such as a gateway that is ending
_PASSED_AT_ONCE = 1000  # requests held back by one call, beside which others wait
T = TypeVar("T")


class Kept(NamedTuple):
    """A request without an answer yet."""

    number: int  # in order of arrival
    id: str
    inputs: bytes
    arrived_unix_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer of a request: serialised outputs, or the status and reason of a permanent failure.

    `outputs` is also None if the answer was taken and later removed to make room.
    """

    outputs: bytes | None
    status: int
    reason: str


class HeldBackError(StatusError):
    """A client has no room for the answer of a request, which `Spool.begin` returns again once it has."""


class Spool:
    """An open spool; its calls run in a thread of its own, one after another."""

    def __init__(self, path: Path, database: sqlite3.Connection, thread: ThreadPoolExecutor, max_bytes: int) -> None:
        """Internal; use `Spool.open` to create a spool."""
        self._file = OpenFile.of(path)
        self._database, self._thread, self._max_bytes = database, thread, max_bytes
        self.closed = False
        self._opened = Moment.now()
        self.waiting, self.bytes = 0, 0  # requests without an answer; size of all rows
        self._untaken = 0  # bytes of requests without an answer, and of answers that nobody has taken
        self._by_client: Counter[str] = Counter()  # the same of each client
        self._untaken_answers: Counter[str] = Counter()  # of each client
        self._held_back: dict[str, int] = {}  # client -> by how much it is to grow with its next answer
        self._oldest_unix_s: float | None = None  # when the first request without an answer arrived
        self.full = False  # an answer found no room: no request is tried until an answer is taken

    @classmethod
    def open(cls, path: Path, max_bytes: int = MAX_BYTES) -> Self:
        """Open the file, made where there is none. StatusError when it cannot be used."""
        with contextlib.ExitStack() as unused:
            thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
            unused.callback(thread.shutdown)
            try:
                database = thread.submit(_open, path).result()
                unused.callback(lambda: thread.submit(database.close).result())
                spool = cls(path, database, thread, max_bytes)
                thread.submit(spool._count).result()
                thread.submit(spool._count_by_client).result()
            except (sqlite3.Error, OSError) as error:
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, f"{path}: {describe_error(error)}") from error
            unused.pop_all()
        return spool

    @property
    def oldest_s(self) -> float:
        """Age in seconds of the oldest request without an answer; 0 without one."""
        return 0.0 if self._oldest_unix_s is None else self.age_s(self._oldest_unix_s)

    def age_s(self, arrived_unix_s: float) -> float:
        """Seconds since a request arrived. By the wall clock only while no process had the file open."""
        return max(0.0, self._now_unix_s() - arrived_unix_s)

    def _now_unix_s(self) -> float:
        """The time as it was when the file was opened, and the seconds since: setting the clock does not change it."""
        return self._opened.unix_s + Moment.now().seconds_since(self._opened)

    def _find_oldest(self) -> None:
        row = self._database.execute("SELECT arrived_s FROM requests ORDER BY number LIMIT 1").fetchone()
        self._oldest_unix_s = row[0] if row else None

    async def put(self, request_id: str, inputs: bytes) -> bool:
        """Keep a request; False when its id is known.

        StatusError when it is known with other inputs, or when the spool or the disk is full.
        """
        return await self._run(self._put, request_id, inputs)

    def _put(self, request_id: str, inputs: bytes) -> bool:
        known = "SELECT digest FROM requests WHERE id = :id UNION ALL SELECT digest FROM answers WHERE id = :id"
        row = self._database.execute(known, {"id": request_id}).fetchone()
        digest = hashlib.sha256(inputs).digest()
        if row:
            if row[0] not in (None, digest):
                reason = "its id is known here with other inputs: give every request an id of its own"
                raise StatusError(grpc.StatusCode.ALREADY_EXISTS, reason)
            return False
        size = _row_bytes(request_id) + len(inputs)
        limit = self._max_bytes - self._max_bytes // _ANSWER_PART
        self._check_share(request_id, size, limit)
        self._make_room(size, limit)
        insert = "INSERT INTO requests (id, inputs, arrived_s, digest) VALUES (?, ?, ?, ?)"
        arrived_s = self._now_unix_s()
        self._database.execute(insert, (request_id, inputs, arrived_s, digest))
        self._oldest_unix_s = arrived_s if self._oldest_unix_s is None else self._oldest_unix_s
        self.waiting, self.bytes = self.waiting + 1, self.bytes + size
        self._add_untaken(request_id, size)
        return True

    def _check_share(self, request_id: str, size: int, limit: int) -> None:
        """StatusError if the client of a request may have no more of the spool beside the others."""
        client, tab, _ = request_id.partition("\t")
        free = limit - self._untaken
        if tab and size <= free and not fits_share(self._by_client[client], size, free):
            reason = (
                f"the spool is nearly full: {self._by_client[client]} of {self._untaken} bytes that wait are of this "
                "client, which is its limit; take its answers by their ids, or send this again later"
            )
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    def _may_grow(self, client: str, size: int) -> bool:
        """True if a client may have an answer that takes `size` more bytes. It may always have one."""
        limit = self._max_bytes - self._max_bytes // _ANSWER_PART
        is_within = size <= 0 or fits_share(self._by_client[client], size, limit - self._untaken)
        return is_within or not self._untaken_answers[client]

    def _add_untaken(self, request_id: str, size: int, answers: int = 0) -> None:
        client, tab, _ = request_id.partition("\t")
        self._untaken += size
        if tab:
            for counter, amount in ((self._by_client, size), (self._untaken_answers, answers)):
                counter[client] += amount
                if not counter[client]:
                    del counter[client]

    def _make_room(self, size: int, limit: int) -> None:
        """Free `size` bytes under `limit` by removing taken answers, oldest first, then their ids."""
        while self.bytes + size > limit:
            oldest = "SELECT number FROM answers WHERE taken AND outputs IS NOT NULL ORDER BY number LIMIT 100"
            numbers = self._database.execute(oldest).fetchall()
            forget = (
                "DELETE FROM answers WHERE number IN (SELECT number FROM answers WHERE taken ORDER BY number LIMIT 100)"
            )
            if not numbers and not self._database.execute(forget).rowcount:
                reason = (
                    f"the spool is full: {self.waiting} requests wait, {self.bytes} of {self._max_bytes} bytes with "
                    "answers that nobody has taken; take them by their ids, or send this again later"
                )
                raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            self._database.executemany("UPDATE answers SET outputs = NULL WHERE number = ?", numbers)
            self._count()

    def _count(self) -> None:
        inputs, self.waiting, outputs = self._database.execute(_BYTES).fetchone()
        self.bytes = inputs + outputs
        self._find_oldest()

    def _count_by_client(self) -> None:
        for request_id, size, answers in self._database.execute(_BYTES_BY_ID):
            self._add_untaken(request_id, size, answers)

    async def after(self, number: int) -> Kept | None:
        """The first request without an answer whose number is above `number`."""
        return await self._run(self._after, number)

    def _after(self, number: int) -> Kept | None:
        select = "SELECT number, id, inputs, arrived_s FROM requests WHERE number > ? ORDER BY number LIMIT 1"
        row = self._database.execute(select, (number,)).fetchone()
        return Kept(*row) if row else None

    async def begin(self, number: int) -> tuple[Kept | None, int]:
        """The request to try next, None if there is none now; and the number up to which none is left to begin.

        `number`: the latter, as of the last call. Requests of clients without room for an answer are held back.
        """
        return await self._run(self._begin, number)

    def _begin(self, number: int) -> tuple[Kept | None, int]:
        for client in [client for client, size in self._held_back.items() if self._may_grow(client, size)]:
            first = "SELECT number FROM held_back WHERE client = ? ORDER BY number LIMIT 1"
            row = self._database.execute(first, (client,)).fetchone()
            if row is None:
                del self._held_back[client]
                continue
            kept = self._after(row[0] - 1)
            self._database.execute("DELETE FROM held_back WHERE client = ? AND number = ?", (client, row[0]))
            if kept is not None and kept.number == row[0]:
                return kept, number
        following = "SELECT number, id FROM requests WHERE number > ? ORDER BY number LIMIT ?"
        last = number
        with contextlib.closing(self._database.execute(following, (number, _PASSED_AT_ONCE))) as rows:
            for last, request_id in rows:
                client = request_id.partition("\t")[0]
                if client not in self._held_back:
                    return self._after(last - 1), last
                self._hold_back(client, last)
        return None, last

    def _hold_back(self, client: str, number: int) -> None:
        self._database.execute("INSERT OR IGNORE INTO held_back VALUES (?, ?)", (client, number))

    async def settle(self, kept: Kept, answer: Answer) -> Answer | None:
        """Replace a request by its answer; returns the answer as stored, None if the request had one already.

        StatusError when there is no room for it yet, HeldBackError when its client has none.
        """
        return await self._run(self._settle, kept, answer)

    def _settle(self, kept: Kept, answer: Answer) -> Answer | None:
        database = self._database
        limit = self._max_bytes // _ANSWER_PART
        if len(answer.outputs or b"") > limit:
            reason = f"its answer has {len(answer.outputs or b'')} bytes; the spool keeps none above {limit}"
            answer = Answer(None, int(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]), reason)
        size = _answer_bytes(kept.id, answer)
        freed = _row_bytes(kept.id) + len(kept.inputs)
        client, tab, _ = kept.id.partition("\t")
        if tab and not self._may_grow(client, size - freed):
            self._held_back[client] = max(size - freed, self._held_back.get(client, 0))
            self._hold_back(client, kept.number)
            reason = "the answers that its client has not taken leave no room for it: it is held back"
            raise HeldBackError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        try:
            self._make_room(size - freed, self._max_bytes)
        except StatusError:
            self.full = True
            raise
        insert = (
            "INSERT OR IGNORE INTO answers (id, outputs, status, reason, answered_s, digest)"
            " VALUES (?, ?, ?, ?, ?, (SELECT digest FROM requests WHERE id = ?))"
        )
        database.execute("BEGIN IMMEDIATE")
        try:
            values = (kept.id, answer.outputs, answer.status, answer.reason, self._now_unix_s(), kept.id)
            added = database.execute(insert, values).rowcount
            removed = database.execute("DELETE FROM requests WHERE number = ?", (kept.number,)).rowcount
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        self.waiting -= removed
        self.bytes += added * size - removed * freed
        self._add_untaken(kept.id, added * size - removed * freed, added)
        self._find_oldest()
        return answer if added else None

    async def take(self, request_id: str) -> Answer | None:
        """The answer of an id, which may be removed from now on to make room; None when there is none yet."""
        return await self._run(self._take, request_id)

    def _take(self, request_id: str) -> Answer | None:
        select = "SELECT outputs, status, reason, taken, number FROM answers WHERE id = ?"
        row = self._database.execute(select, (request_id,)).fetchone()
        if row is None:
            return None
        if not row[3]:
            self._database.execute("UPDATE answers SET taken = 1 WHERE number = ?", (row[4],))
            self._add_untaken(request_id, -_answer_bytes(request_id, Answer(*row[:3])), -1)
            self.full = False
            if row[4] % 1000 == 0:
                self._database.execute("DELETE FROM answers WHERE taken AND number < ?", (row[4] - TAKEN_IDS,))
                self._count()
        return Answer(*row[:3])

    async def knows(self, request_id: str) -> bool:
        """True if a request with this id has no answer yet."""
        select = "SELECT 1 FROM requests WHERE id = ?"
        return await self._run(lambda: self._database.execute(select, (request_id,)).fetchone() is not None)

    async def waiting_ids(self) -> list[str]:
        """The ids of all requests without an answer."""
        select = "SELECT id FROM requests"
        return await self._run(lambda: [row[0] for row in self._database.execute(select)])

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        if self.closed:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down")
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._in_place(call, *arguments)
            )
        except (sqlite3.Error, OSError) as error:
            is_full = is_of_full_disk(error)
            cause = full_disk_text(self._file.path) if is_full else describe_error(error, name=True)
            reason = f"the spool cannot be used: {cause}"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason) from error

    def _in_place(self, call: Callable[..., T], *arguments: object) -> T:
        """Call once the file is where it belongs: what is written to one that was removed would be lost."""
        place = self._file.place
        if place is Place.NOTHING:
            self._write_again()
        elif place is Place.OTHER:
            reason = (
                f"{self._file.path} is another file than the one that this gateway writes: stop the gateway, or put "
                "the file back"
            )
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
        return call(*arguments)

    def _write_again(self) -> None:
        LOG.warning("%s is gone: it is written again", self._file.path)
        held_back = self._database.execute("SELECT client, number FROM held_back").fetchall()
        self._file.write_again(self._database)
        self._database.close()
        self._database, self._file = _open(self._file.path), OpenFile.of(self._file.path)
        self._database.executemany("INSERT INTO held_back VALUES (?, ?)", held_back)

    def close(self) -> None:
        """Close the file and end the thread."""
        if self.closed:
            return
        self.closed = True
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives the files beside it the same mode
    path.chmod(0o600)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    """Set what every connection needs, and add the tables and columns that are missing."""
    use_write_ahead_log(database, _LOCK_TIMEOUT_S)
    require_no_triggers(database)
    database.executescript(_TABLES)
    database.execute(_HELD_BACK)
    for table in ("requests", "answers"):  # a file of an older version
        if "digest" not in {row[1] for row in database.execute(f"PRAGMA table_info({table})")}:
            database.execute(f"ALTER TABLE {table} ADD COLUMN digest BLOB")


def _row_bytes(request_id: str) -> int:
    return ROW_BYTES + 2 * len(request_id.encode())


def _answer_bytes(request_id: str, answer: Answer) -> int:
    return _row_bytes(request_id) + len(answer.outputs or b"") + len(answer.reason.encode())
