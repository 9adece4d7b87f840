"""Direct calls in progress: requests for a single operator, outside the pipeline (the Open Inference Protocol).

Decides how many of them share one run, and for how long to busy-wait for the answer of a single one.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from jellybean_agent.admission.shares import PeerShare, SharedLimit
from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.errors import AgentError
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.worker.run_outputs import is_direct_call

MAX_DIRECT_CALLS = 32  # most calls in flight of one client
_MOST = 36  # of all clients: about half of the queue length at which credit stops, so they cannot fill it
_BATCH_S = 1e-3  # target length of a run of several direct calls
_SHORTEST_RUN_GROWTH = 1.02  # growth of the remembered shortest run time per run, so that it adapts to load
_SPIN_S = 150e-6  # longest busy-wait; for the fastest models it costs less than a wake-up
_MIN_GAP_S = 30e-6  # no busy-wait if the last answer is more recent: other requests then wait to be read
_MAX_FAILED_SPINS, _SPIN_EVERY = 3, 64  # after so many futile busy-waits in a row, spin for every n-th run only

OnOutputs = Callable[[Mapping[str, Array] | AgentError], None]  # receives a call's outputs, or its error
DirectCall = tuple[str, str, Sequence[Array]]  # request, operator, inputs


class DirectCalls:
    """The direct calls of one worker. Used in the event loop's thread only, except `batch_size` (brain's lock held)."""

    def __init__(self) -> None:
        self._prefix, self._numbers = f"direct-{secrets.token_hex(8)}", itertools.count()
        self._limit = SharedLimit(_MOST)
        self._share = self._limit.share_of("")  # of the last client, who is often the next one
        self._callbacks: dict[str, tuple[OnOutputs, PeerShare]] = {}  # request id -> callback, share of its client
        self._unsubmitted: list[DirectCall] = []  # not yet handed to the brain
        self._shortest_run_s: dict[str, float] = {}  # operator -> shortest recent run
        self._last_answer_s = 0.0
        self._failed_spins = 0  # futile busy-waits in a row

    def __len__(self) -> int:
        """Number of calls without an answer."""
        return len(self._callbacks)

    def __contains__(self, request: str) -> bool:
        return request in self._callbacks

    @property
    def unsubmitted(self) -> int:
        """Number of calls not yet submitted to the brain."""
        return len(self._unsubmitted)

    def add(self, operator: str, inputs: Sequence[Array], on_outputs: OnOutputs, client: str = "") -> str:
        """Add a call; returns its request id, which no other process knows, so no message can name it.

        Empty, and nothing is added, if the client has its share of the calls in flight, or there are too many.
        """
        if client != self._share.peer:
            self._share = self._limit.share_of(client)
        share = self._share
        if not share.take():
            return ""
        request = f"{self._prefix}-{next(self._numbers)}"
        self._callbacks[request] = on_outputs, share
        self._unsubmitted.append((request, operator, inputs))
        return request

    def take_unsubmitted(self) -> list[DirectCall]:
        """Remove and return the calls not yet submitted to the brain."""
        calls, self._unsubmitted = self._unsubmitted, []
        return calls

    def drop(self, request: str) -> bool:
        """Drop a call whose client is gone; returns True if it was still in progress."""
        if self._take(request) is None:
            return False
        self._unsubmitted = [call for call in self._unsubmitted if call[0] != request]
        return True

    def answer(self, outputs: Mapping[str, Mapping[str, Array]]) -> None:
        """Pass outputs (request -> output name -> tensor) to the callers that still wait."""
        for request, of_request in outputs.items():
            if (callback := self._take(request)) is not None:
                callback(of_request)
                self._last_answer_s = time.monotonic()

    def fail(self, request: str, error: AgentError) -> None:
        if (callback := self._take(request)) is not None:
            callback(error)

    def fail_all(self, error: AgentError) -> None:
        self._unsubmitted = []
        for request in list(self._callbacks):
            self.fail(request, error)

    def _take(self, request: str) -> OnOutputs | None:
        """Remove a call; returns its callback, None if it is over already."""
        callback, share = self._callbacks.pop(request, (None, None))
        if share is not None:
            share.give()
        return callback

    def batch_size(self, operator: str, run_s: float) -> int:
        """Record that a run took `run_s` seconds; returns how many calls may share a run (more if runs are short).

        Uses the shortest recent run, as longer ones include waiting for a processor.
        """
        shortest_s = min(run_s, _SHORTEST_RUN_GROWTH * self._shortest_run_s.get(operator, math.inf))
        self._shortest_run_s[operator] = shortest_s
        return max(1, min(MAX_DIRECT_CALLS, int(_BATCH_S / max(shortest_s, 1e-9))))

    def spin_s(self, run: RunOperator, now_s: float) -> float | None:
        """Seconds to busy-wait for the answer of a run; None if other requests are in progress."""
        if not is_direct_call(run) or len(self._callbacks) != 1 or now_s - self._last_answer_s <= _MIN_GAP_S:
            return None
        return _SPIN_S if self._failed_spins < _MAX_FAILED_SPINS or run.run % _SPIN_EVERY == 0 else 0.0

    def spun(self, *, failed: bool) -> None:
        """Record the end of a busy-wait; `failed`: no answer came in time."""
        self._failed_spins = self._failed_spins + 1 if failed else 0
