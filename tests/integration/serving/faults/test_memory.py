"""Memory over a million requests: the second half grows by less than 1 % in every process, and a leak is found.

JELLYBEAN_REQUESTS sets another number of requests.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest

from jellybean.bench.load import INFER
from jellybean.serving import request_of
from jellybean_agent import Transport
from tests.support.cut_link import Run, run_over_a_link
from tests.support.tiny_models import make_plan, scale

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(4 * 3600)]

REQUESTS = int(os.environ.get("JELLYBEAN_REQUESTS", "1_000_000"))
AT_ONCE = 64
LOOKS = 200  # at memory, over the whole run
GROWTH = 0.01
LEAKY = "tests.integration.serving.faults.leaky_gateway"


def rss_bytes(run: Run) -> dict[str, int]:
    """By process, those that an agent's models run in included."""
    found = {}
    for name, process in run.processes.items():
        whole = psutil.Process(process.pid)
        found[name or "gateway"] = sum(each.memory_info().rss for each in (whole, *whole.children(recursive=True)))
    return found


async def send(address: str, requests: int, look: Callable[[int], None]) -> int:
    """Send so many requests, a constant number at once, each with an id of its own; how many failed."""
    request = request_of({"x": np.ones((1, 4), np.float32)})
    numbers, failed = itertools.count(1), 0
    async with Transport(insecure=True).channel(address) as channel:
        infer = channel.unary_unary(INFER, request_serializer=None, response_deserializer=None)

        async def client() -> None:
            nonlocal failed
            while (number := next(numbers)) <= requests:
                request.request_id = f"request-{number}"
                answer = await infer(request.SerializeToString())
                failed += not answer
                if number % (requests // LOOKS) == 0:
                    look(number)

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return failed


def grown(looks: list[Mapping[str, int]]) -> dict[str, float]:
    """By process: the median of the last tenth of the looks over that of the tenth in the middle, less 1."""
    tenth = len(looks) // 10
    middle, end = looks[len(looks) // 2 : len(looks) // 2 + tenth], looks[-tenth:]
    return {
        name: float(np.median([look[name] for look in end]) / np.median([look[name] for look in middle]) - 1.0)
        for name in looks[0]
    }


def measure(root: Path, requests: int, gateway: str | None = None) -> dict[str, float]:
    operators = {"double": (["x"], scale(root / "models/double.onnx", 2.0))}
    document = make_plan(root, operators, [(1.0, {"double": "edge-1"})], sources={"x": "edge"}, batch=16)
    with run_over_a_link(root, document, ("edge-1",), gateway=gateway) as run:
        looks: list[Mapping[str, int]] = []
        began_s = time.monotonic()
        failed = asyncio.run(send(run.address, requests, lambda _number: looks.append(rss_bytes(run))))
        rate = requests / (time.monotonic() - began_s)
        found = grown(looks)
        last = {name: f"{size / 2**20:.1f} MiB" for name, size in looks[-1].items()}
        print(f"{requests} requests at {rate:.0f}/s: grown by {found}, at the end {last}")
        assert not failed
    return found


def test_a_million_requests_leave_nothing_behind(tmp_path: Path) -> None:
    found = measure(tmp_path, REQUESTS)
    assert max(found.values()) < GROWTH, found


def test_the_check_finds_a_leak(tmp_path: Path) -> None:
    """The same check, the same load, half a kilobyte kept of each request: it fails, by the gateway alone."""
    found = measure(tmp_path, min(REQUESTS, 200_000), LEAKY)
    assert found["gateway"] > GROWTH, found
