"""Servers in an event loop of their own, beside a test that has none, as a property has none that sends them bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

Shown = TypeVar("Shown")
Show = Callable[[Shown], Awaitable[None]]
_END_S = 60.0


@contextlib.contextmanager
def served_in_thread(serve: Callable[[Show[Shown]], None]) -> Iterator[Shown]:
    """Run `serve` in a thread until the context ends; yields what it shows once it serves.

    `serve(show)` runs an event loop, in which it awaits `show(what the test needs)`: that returns when the context
    ends. What `serve` raises is raised here.
    """
    shown: Future[Shown] = Future()
    ended = threading.Event()
    failed: list[BaseException] = []

    async def show(what: Shown) -> None:
        shown.set_result(what)
        while not ended.is_set():
            await asyncio.sleep(0.02)

    def run() -> None:
        try:
            serve(show)
        except BaseException as error:  # noqa: BLE001  (raised in the test)
            failed.append(error)
            if not shown.done():
                shown.set_exception(error)

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        yield shown.result(_END_S)
    finally:
        ended.set()
        thread.join(_END_S)
    assert not thread.is_alive()
    if failed:
        raise failed[0]
