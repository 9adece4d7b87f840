"""The spool on a real disk: once by id, in order, within its bound, and after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from jellybean.serving.spool import Answer, Spool
from jellybean_agent.errors import StatusError

DONE = Answer(b"answer", 0, "")


def run(path: Path, test: Callable[[Spool], Awaitable[None]], most_bytes: int = 1000) -> None:
    async def whole() -> None:
        spool = Spool(path, most_bytes)
        try:
            await test(spool)
        finally:
            spool.close()

    asyncio.run(whole())


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
        assert not await spool.put("b", b"once more")
        assert (await spool.after(0)).id == "a"
        assert (await spool.knows("a"), await spool.knows("b")) == (True, False)

    run(tmp_path / "spool.db", test)

    async def again(spool: Spool) -> None:
        assert (spool.waiting, spool.bytes) == (1, 1 + len(b"answer"))
        assert not await spool.put("b", b"once more")

    run(tmp_path / "spool.db", again)


def test_answers_that_were_taken_make_room_and_nothing_else_does(tmp_path: Path) -> None:
    async def test(spool: Spool) -> None:
        for name in ("a", "b", "c"):
            await spool.put(name, b"x" * 300)
        with pytest.raises(StatusError, match=r"the spool is full: 3 requests wait, 900 of 1000 bytes") as caught:
            await spool.put("d", b"x" * 300)
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        await spool.settle(await spool.after(0), Answer(b"y" * 300, 0, ""))
        with pytest.raises(StatusError):  # nobody has taken the answer
            await spool.put("d", b"x" * 300)
        assert (await spool.take("a")).outputs == b"y" * 300
        assert await spool.put("d", b"x" * 300)
        assert await spool.take("a") == Answer(None, 0, "")  # still known, so that it is not served again
        assert not await spool.put("a", b"x")
        assert (spool.waiting, spool.bytes) == (3, 900)

    run(tmp_path / "spool.db", test)


def test_what_was_put_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from jellybean.serving.spool import Answer, Spool\n"
        "async def main():\n"
        "    spool = Spool(Path(sys.argv[1]))\n"
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
