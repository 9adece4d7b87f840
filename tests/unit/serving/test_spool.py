"""The spool on a real disk: once by id, in order, within its bound, and after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from jellybean.serving.spool.spool import Answer, HeldBackError, Spool
from jellybean_agent import StatusError

DONE = Answer(b"answer", 0, "")


def run(path: Path, test: Callable[[Spool], Awaitable[None]], most_bytes: int = 1000) -> None:
    async def whole() -> None:
        spool = Spool.open(path, most_bytes)
        try:
            await test(spool)
        finally:
            spool.close()

    asyncio.run(whole())


def test_the_age_of_the_oldest_request_ends_with_its_answer(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        assert spool.oldest_s == 0.0
        await spool.put("a", b"")
        await asyncio.sleep(0.02)
        await spool.put("b", b"")
        older = spool.oldest_s
        assert older >= 0.02
        first = await spool.after(0)
        await spool.settle(first, DONE)
        assert 0 <= spool.oldest_s < older
        await spool.settle(await spool.after(first.number), DONE)
        assert spool.oldest_s == 0.0
        await spool.put("c", b"")

    run(tmp_path / "spool.db", test)
    spool = Spool.open(tmp_path / "spool.db", 1000)  # the age is of the file, not of the process
    assert spool.oldest_s > 0
    spool.close()


def test_a_spool_from_elsewhere_has_no_triggers(tmp_path: Path) -> None:
    Spool.open(tmp_path / "spool.db", 1000).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.db")) as database:
        database.execute("CREATE TRIGGER forged AFTER INSERT ON answers BEGIN DELETE FROM requests; END")
    with pytest.raises(StatusError, match="it has a trigger 'forged', as no file of JellyBean"):
        Spool.open(tmp_path / "spool.db", 1000)


def test_once_by_id_and_in_order(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        assert [await spool.put(name, name.encode()) for name in ("b", "a", "b")] == [True, True, False]
        first = await spool.after(0)
        assert (first.id, first.inputs) == ("b", b"b")
        second = await spool.after(first.number)
        assert second.id == "a"
        assert await spool.after(second.number) is None
        assert await spool.take("b") is None
        await spool.settle(first, DONE)
        await spool.settle(first, Answer(b"another", 0, ""))  # it was served twice: the first answer counts
        assert await spool.take("b") == DONE
        assert await spool.take("b") == DONE
        assert not await spool.put("b", b"b")
        assert (await spool.after(0)).id == "a"
        assert (await spool.knows("a"), await spool.knows("b")) == (True, False)

    run(tmp_path / "spool.db", test)

    async def again(spool: Spool) -> None:
        assert (spool.waiting, spool.bytes) == (1, 1 + len(b"answer") + 2 * 130)
        assert not await spool.put("b", b"b")

    run(tmp_path / "spool.db", again)


def test_answers_that_were_taken_make_room_and_nothing_else_does(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        for name in ("a", "b", "c"):
            await spool.put(name, b"x" * 1000)
        full = r"the spool is full: 3 requests wait, 3390 of 5000 bytes"
        with pytest.raises(StatusError, match=full) as caught:  # an eighth is for answers
            await spool.put("d", b"x" * 1000)
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        await spool.settle(await spool.after(0), Answer(b"y" * 600, 0, ""))
        with pytest.raises(StatusError):  # nobody has taken the answer
            await spool.put("d", b"x" * 1300)
        assert (await spool.take("a")).outputs == b"y" * 600
        assert await spool.put("d", b"x" * 1300)
        assert await spool.take("a") == Answer(None, 0, "")  # still known, so that it is not served again
        assert not await spool.put("a", b"x" * 1000)
        assert (spool.waiting, spool.bytes) == (3, 2 * 1130 + 130 + 1430)

    run(tmp_path / "spool.db", test, 5000)


def test_one_client_leaves_room_for_the_others(tmp_path: Path) -> None:
    crowd, other = ("jellybean://w/client/mallory\t", "jellybean://w/client/alice\t")

    async def test(spool: Spool) -> None:
        kept = 0
        with pytest.raises(StatusError, match="bytes that wait are of this client, which is its limit") as caught:
            while await spool.put(f"{crowd}{kept}", b"x" * 100):
                kept += 1
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0.8 < spool.bytes / 35_000 < 0.88, "7/8 of what is for requests"
        assert await spool.put(f"{other}1", b"x" * 100)
        for _ in range(10):
            await spool.settle(await spool.after(0), DONE)
        assert await spool.put(f"{crowd}again", b"x" * 100), "an answer is smaller than its request"

    run(tmp_path / "spool.db", test, 40_000)


@pytest.mark.parametrize("input_bytes", [10, 1000])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_answers_that_a_client_never_takes_are_of_its_share(
    tmp_path: Path, input_bytes: int, is_reopened: bool
) -> None:
    async def crowd(spool: Spool) -> None:
        with pytest.raises(StatusError, match=r"of this client, which is its limit|it is held back"):
            for number in range(40):
                await spool.put(f"jellybean://w/client/mallory\t{number}", b"x" * input_bytes)
                await spool.settle(await spool.after(0), Answer(b"y" * 30_000, 0, ""))
        if not is_reopened:
            await others(spool)

    async def others(spool: Spool) -> None:
        last = 0
        for name in ("alice", "bob"):
            assert await spool.put(f"jellybean://w/client/{name}\t1", b"x" * 1000)
            kept = await spool.after(last)
            while name not in kept.id:
                kept = await spool.after(kept.number)
            assert await spool.settle(kept, Answer(b"y" * 1000, 0, "")) is not None
        with pytest.raises(StatusError, match="which is its limit"):
            await spool.put("jellybean://w/client/mallory\tagain", b"x" * 25_000)
        await spool.take("jellybean://w/client/mallory\t0")
        await spool.take("jellybean://w/client/mallory\t1")
        assert await spool.put("jellybean://w/client/mallory\tagain", b"x" * 1000)

    run(tmp_path / "spool.db", crowd, 2**20)
    if is_reopened:
        run(tmp_path / "spool.db", others, 2**20)


def test_requests_whose_answers_have_no_room_are_held_back_and_those_of_others_are_not(tmp_path: Path) -> None:
    """Requests are small, and their answers are not: when they are put, nobody knows it."""
    crowd, other, answer = (
        "jellybean://w/client/mallory\t",
        "jellybean://w/client/alice\t",
        Answer(b"y" * 30_000, 0, ""),
    )

    async def test(spool: Spool) -> None:
        for number in range(100):
            await spool.put(f"{crowd}{number}", b"x")
        last, answered, held_back = 0, [], []
        while True:
            kept, last = await spool.begin(last)
            if kept is None:
                break
            try:
                await spool.settle(kept, answer)
                answered.append(kept.id)
            except HeldBackError:
                held_back.append(kept.id)
        assert (answered[:2], len(held_back)) == ([f"{crowd}0", f"{crowd}1"], 1)
        assert 20 < len(answered) < 30 and not spool.full
        await spool.put(f"{other}1", b"x" * 20_000)
        kept, last = await spool.begin(last)
        assert kept.id == f"{other}1"
        assert await spool.settle(kept, answer) is not None
        assert await spool.begin(last) == (None, last)
        for name in answered:  # all are answered in the end, once, in order
            await spool.take(name)
            kept, last = await spool.begin(last)
            if kept is not None:
                await spool.settle(kept, answer)
                answered.append(kept.id)
        assert answered == [f"{crowd}{number}" for number in range(100)]
        assert spool.waiting == 0

    run(tmp_path / "spool.db", test, 2**20)


def test_a_client_that_takes_one_answer_at_a_time_gets_them_all(tmp_path: Path) -> None:
    """Also if its requests alone fill its share."""

    async def test(spool: Spool) -> None:
        count = 0
        with pytest.raises(StatusError, match="which is its limit"):
            while await spool.put(f"jellybean://w/client/alice\t{count}", b"x" * 300):
                count += 1
        last = 0
        for number in range(count):
            kept, last = await spool.begin(last)
            assert kept.id == f"jellybean://w/client/alice\t{number}"
            await spool.settle(kept, Answer(b"y" * 2000, 0, ""))
            assert await spool.take(kept.id) is not None

    run(tmp_path / "spool.db", test, 2**15)


def test_a_spool_that_is_full_of_taken_answers_is_not_full_for_a_client(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        for number in range(200):
            name = f"jellybean://w/client/alice\t{number}"
            assert await spool.put(name, b"x" * 100)
            await spool.settle(await spool.after(0), Answer(b"y" * 300, 0, ""))
            await spool.take(name)

    run(tmp_path / "spool.db", test, 20_000)


def test_answers_and_ids_have_their_bound_too(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        for number in range(9):
            await spool.put(str(number), b"x" * 600)
        for number in range(9):
            kept = await spool.after(0)
            if number < 8:
                await spool.settle(kept, Answer(b"y" * 900, 0, ""))
        with pytest.raises(StatusError, match="the spool is full"):
            await spool.settle(kept, Answer(b"y" * 1000, 0, ""))
        assert spool.full
        assert spool.bytes <= 9000
        await spool.take("0")
        assert not spool.full
        await spool.settle(kept, Answer(b"y" * 1126, 0, ""))
        assert (await spool.take("8")).reason == "its answer has 1126 bytes; the spool keeps none above 1125"
        for number in range(100):  # ids of answers that were taken go last, but go
            await spool.take(str(number))
            await spool.put(f"{number} {'i' * 200}", b"x")
            await spool.settle(await spool.after(0), Answer(b"", 0, ""))
            await spool.take(f"{number} {'i' * 200}")
            assert spool.bytes <= 9000

    run(tmp_path / "spool.db", test, 9000)


def test_an_id_stands_for_one_request(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        assert await spool.put("a", b"one")
        with pytest.raises(StatusError, match="with other inputs") as caught:
            await spool.put("a", b"two")
        assert caught.value.status is grpc.StatusCode.ALREADY_EXISTS
        await spool.settle(await spool.after(0), DONE)
        assert not await spool.put("a", b"one")
        with pytest.raises(StatusError, match="with other inputs"):
            await spool.put("a", b"two")

    run(tmp_path / "spool.db", test)


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        await spool.put("a", b"x")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert modes == {"spool.db": 0o600, "spool.db-wal": 0o600, "spool.db-shm": 0o600}

    run(tmp_path / "spool.db", test)


def test_a_file_of_a_version_before_is_read(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.db")) as database:
        database.executescript(
            "CREATE TABLE requests (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
            " inputs BLOB NOT NULL, arrived_s REAL NOT NULL);"
            "INSERT INTO requests (id, inputs, arrived_s) VALUES ('a', 'x', 0.0);"
        )

    async def test(spool: Spool) -> None:
        assert not await spool.put("a", b"x")
        await spool.settle(await spool.after(0), DONE)
        assert await spool.take("a") == DONE

    run(tmp_path / "spool.db", test)


def test_what_was_put_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from jellybean.serving.spool.spool import Answer, Spool\n"
        "async def main():\n"
        "    spool = Spool.open(Path(sys.argv[1]))\n"
        "    for number in range(1000):\n"
        "        await spool.put(f'r{number}', b'data')\n"
        "        if number % 2:\n"
        "            await spool.settle(await spool.after(0), Answer(b'answer', 0, ''))\n"
        "        print(number, flush=True)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "spool.db"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGKILL)
    assert said == list(range(20))

    async def test(spool: Spool) -> None:
        states = [(await spool.take(f"r{n}") is not None, await spool.knows(f"r{n}")) for n in range(20)]
        assert all(answered != waits for answered, waits in states)  # each is there, in one place
        assert all(answered for answered, _ in states[:10])

    run(path, test)


DAMAGES: dict[str, Callable[[sqlite3.Connection, Path], None]] = {
    "no column": lambda database, path: database.executescript("DROP TABLE answers; CREATE TABLE answers (id TEXT)"),
    "a view": lambda database, path: database.executescript(
        "DROP TABLE requests; CREATE VIEW requests AS SELECT 1 AS number, NULL AS digest, id FROM missing"
    ),
    "no database": lambda database, path: path.write_bytes(b"text " * 1000) and None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_left_closed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "spool.db"
    Spool.open(path, 1000).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        DAMAGES[damage](database, path)
    threads = threading.active_count()
    with pytest.raises(StatusError, match=r"spool\.db: "):
        Spool.open(path, 1000)
    assert threading.active_count() == threads
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [name for name in opened if name.startswith(str(path))] == []


LOSSES: dict[str, Callable[[Path], None]] = {
    "the file": lambda path: path.unlink(),
    "all of SQLite's files": lambda path: [file.unlink() for file in path.parent.glob(f"{path.name}*")] and None,
    "the folder": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_file_that_is_removed_is_written_again_with_all_that_waits(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "state" / "spool.db"
    path.parent.mkdir()

    async def test(spool: Spool) -> None:
        await spool.put("answered", b"a")
        await spool.put("waits", b"b")
        await spool.settle(await spool.after(0), DONE)
        lose(path)
        await spool.put("later", b"c")

    run(path, test)

    async def again(spool: Spool) -> None:
        assert sorted(await spool.waiting_ids()) == ["later", "waits"]
        assert await spool.take("answered") == DONE

    run(path, again)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_requests_that_are_held_back_stay_so_when_the_file_is_removed(tmp_path: Path) -> None:
    path, crowd, answer = tmp_path / "spool.db", "jellybean://w/client/mallory\t", Answer(b"y" * 30_000, 0, "")

    async def test(spool: Spool) -> None:
        for number in range(100):
            await spool.put(f"{crowd}{number}", b"x")
        last, answered, held_back = 0, [], ""
        while not held_back:
            kept, last = await spool.begin(last)
            assert kept is not None
            try:
                await spool.settle(kept, answer)
                answered.append(kept.id)
            except HeldBackError:
                held_back = kept.id
        path.unlink()
        for name in answered:
            await spool.take(name)
        kept, last = await spool.begin(last)
        assert kept is not None and kept.id == held_back

    run(path, test, 2**20)


def test_another_file_in_its_place_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"

    async def test(spool: Spool) -> None:
        await spool.put("a", b"")
        path.unlink()
        path.write_bytes(b"a file of somebody")
        with pytest.raises(StatusError, match="another file than the one that this gateway writes") as caught:
            await spool.put("b", b"")
        assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION

    run(path, test)
    assert path.read_bytes() == b"a file of somebody"


def test_a_project_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "project" / ".jellybean" / "spool.db"
    path.parent.mkdir(parents=True)

    async def test(spool: Spool) -> None:
        shutil.rmtree(tmp_path / "project")
        with pytest.raises(StatusError, match="the spool cannot be used"):
            await spool.put("b", b"")

    run(path, test)
    assert not (tmp_path / "project").exists()
