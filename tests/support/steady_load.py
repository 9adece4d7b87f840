"""Steady load on a gateway while something happens to it: each request has an id and an answer of its own."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from jellybean.serving import Client, RequestError


class SteadyLoad:
    """`with SteadyLoad(address, rate_per_s) as load: ...`; then `check()` says what became of every request.

    Requests leave when they are due, whatever became of earlier ones. `factor`: what the workflow multiplies by.
    `workflow`: which one, of several. `tls`, `retry_s`: of the client.
    """

    def __init__(
        self,
        address: str,
        rate_per_s: float,
        *,
        factor: float = 2.0,
        timeout_s: float = 20.0,
        workflow: str = "",
        tls: Path | None = None,
        retry_s: float = 0.0,
    ) -> None:
        self._workflow, self._tls, self._retry_s = workflow, tls, retry_s
        self.latencies_s: list[float] = []  # of the requests that were answered rightly
        self._address, self._rate_per_s, self._factor, self._timeout_s = address, rate_per_s, factor, timeout_s
        self._stop = threading.Event()
        self._run = uuid.uuid4().hex
        self._lock = threading.Lock()
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.ended: set[int] = set()  # numbers, from 1, of the requests that have an outcome
        self.wrong: list[Any] = []

    def __enter__(self) -> Self:
        more = {"workflow": self._workflow, "tls": self._tls, "retry_s": self._retry_s}
        self._client = Client(self._address, timeout_s=self._timeout_s, **more)
        self._pool = ThreadPoolExecutor(64)
        self._sender = threading.Thread(target=self._send)
        self._sender.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._sender.join()
        self._pool.shutdown(wait=True)
        self._client.close()

    def _send(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            due_s = max(due_s + 1.0 / self._rate_per_s, time.monotonic() - 1.0)  # this machine may stand still
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.sent += 1
            self._pool.submit(self._one, self.sent)

    def _one(self, number: int) -> None:
        value = np.array([[number % 4096, 1, 2, 3]], np.float32)
        outcome, began_s = "OK", time.monotonic()
        try:
            (answer,) = self._client.infer({"x": value}, request_id=f"{self._run}-{number}").values()
            if not np.array_equal(answer, value * self._factor):
                outcome = "WRONG"
                self.wrong.append((value, answer))
        except RequestError as error:
            outcome = str(error)
        with self._lock:
            self.outcomes[outcome] += 1
            if outcome == "OK":
                self.latencies_s.append(time.monotonic() - began_s)
            self.ended.add(number)

    def check(self) -> None:
        """Every request was answered, rightly, once."""
        assert self.outcomes == {"OK": self.sent}, self.outcomes.most_common(3)
