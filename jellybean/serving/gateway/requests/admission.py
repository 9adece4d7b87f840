"""Which new requests a gateway admits: bounds on requests and bytes in flight, and ids that are used once."""

from __future__ import annotations

from collections import OrderedDict

import grpc

from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Key

MAX_BYTES_IN_FLIGHT = 2**30  # limit for the inputs of all requests in flight, which are kept for retries
REMEMBERED_IDS = 65_536  # number of answered requests whose ids are remembered
MAX_ID_BYTES = 256


class Admission:
    """Counts the inputs in flight and remembers ids; at most `max_in_flight` requests at once."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._bytes = 0  # of the inputs in flight
        self._keys: set[Key] = set()  # of the requests in flight
        self._answered: OrderedDict[Key, None] = OrderedDict()  # oldest first

    def refusal(self, key: Key | None, size: int, in_flight: int) -> Outcome | None:
        """Why a request with `size` bytes of inputs is refused; None if it is admitted. `in_flight`: number of others.

        RESOURCE_EXHAUSTED when the gateway is full, ALREADY_EXISTS when the key is in use or was answered.
        """
        if key is not None and key in self._keys:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} is in flight already")
        if key is not None and key in self._answered:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} was answered already")
        full = ""
        if in_flight >= self._max_in_flight:
            full = f"{in_flight} requests are in flight, the most this gateway takes"
        elif in_flight and self._bytes + size > MAX_BYTES_IN_FLIGHT:
            full = (
                f"{self._bytes} bytes of inputs are in flight: {size} more would be above the limit of "
                f"{MAX_BYTES_IN_FLIGHT}"
            )
        return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, f"overloaded: {full}") if full else None

    def add(self, key: Key | None, size: int) -> None:
        """Count a request that was admitted."""
        self._bytes += size
        if key is not None:
            self._keys.add(key)

    def remove(self, key: Key | None, size: int, *, answered: bool) -> None:
        """Remove an ended request from the counts; an `answered` one's key is remembered, so it cannot be reused."""
        self._bytes -= size
        if key is None:
            return
        self._keys.discard(key)
        if answered:
            self._answered[key] = None
            if len(self._answered) > REMEMBERED_IDS:
                self._answered.popitem(last=False)
