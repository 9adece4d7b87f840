"""Tasks that run beside others, and the signals that end a process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from jellybean_agent import running_task, termination_event


def test_a_task_ends_with_its_context_even_if_that_fails() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with running_task(work("first")):
            await asyncio.sleep(0)
        assert ended == ["first"]
        with pytest.raises(KeyError):
            async with running_task(work("second")):
                await asyncio.sleep(0)
                raise KeyError
        assert ended == ["first", "second"]
        async with running_task(fail()):
            await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event(default_sigterm: None, number: int) -> None:
    async def run() -> None:
        event = termination_event()
        assert not event.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(event.wait(), 10)

    asyncio.run(run())
