"""When requests are due, and a gateway that is not there."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest

from jellybean.bench import load
from jellybean.bench.load import due_times
from jellybean.serving import Endpoint, ServingError
from jellybean_solver import Arrivals


def test_periodic_requests_are_evenly_spaced() -> None:
    assert due_times(4.0, 1.0, Arrivals.PERIODIC, 0) == [0.0, 0.25, 0.5, 0.75]
    assert len(due_times(17.0, 3.0, Arrivals.PERIODIC, 0)) == 51


def test_poisson_requests_repeat_by_seed_and_have_the_rate() -> None:
    times = due_times(100.0, 100.0, Arrivals.POISSON, 1)
    assert times == due_times(100.0, 100.0, Arrivals.POISSON, 1)
    assert times != due_times(100.0, 100.0, Arrivals.POISSON, 2)
    assert times == sorted(times)
    assert max(times) < 100.0
    assert len(times) == pytest.approx(10_000, abs=500)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_a_gateway_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_CONNECT_S", 0.2)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServingError, match=rf"{address} does not answer; is it up\? jellybean up"):
            asyncio.run(load.offer(Endpoint(address), [], [], [], settle_s=0.0))
