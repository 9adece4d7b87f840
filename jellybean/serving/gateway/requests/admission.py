"""Which new requests a gateway admits: bounds on requests and bytes in flight, shared by clients, and ids used once."""

from __future__ import annotations

from collections import OrderedDict

import grpc

from jellybean.serving.gateway.byte_limits import MAX_BYTES_IN_FLIGHT
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PeerShare, SharedLimit

REMEMBERED_IDS = 65_536  # number of answered requests whose ids are remembered
MAX_ID_BYTES = 256


class RequestAdmission:
    """Counts the inputs in flight and remembers ids; at most `max_in_flight` requests at once, shared by clients.

    `in_flight_bytes`: of all workflows of the process; its own limit if there is none.
    """

    def __init__(self, max_in_flight: int, in_flight_bytes: SharedLimit | None = None) -> None:
        self._requests = SharedLimit(max_in_flight)
        self._bytes = in_flight_bytes or SharedLimit(MAX_BYTES_IN_FLIGHT)
        self._shares: dict[
            str, tuple[PeerShare, PeerShare]
        ] = {}  # requests and bytes of the clients that have some in flight
        self._keys: set[Key] = set()  # of the requests in flight
        self._answered: OrderedDict[Key, None] = OrderedDict()  # oldest first

    def refusal(self, key: Key, size: int, in_flight: int) -> Outcome | None:
        """Why a request with `size` bytes of inputs is refused; None if it is admitted. `in_flight`: number of others.

        `key`: with an empty id it only names the client. RESOURCE_EXHAUSTED when the gateway is full, or the client has
        its share of it; ALREADY_EXISTS when the key is in use or was answered.
        """
        if key in self._keys:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} is in flight already")
        if key in self._answered:
            return Outcome(grpc.StatusCode.ALREADY_EXISTS, f"request {key} was answered already")
        requests, held_bytes = self._shares_of(key.caller)
        full = ""
        if in_flight >= self._requests.total:
            full = f"{in_flight} requests are in flight, the most this gateway takes"
        elif not requests.may_take(others=max(0, in_flight - self._requests.held)):
            full = f"{requests.held} of {in_flight} requests in flight are of this client, which is its limit"
        elif self._bytes.held and not held_bytes.may_take(size):
            held = f"{self._bytes.held} bytes of inputs are in flight, {held_bytes.held} of this client"
            full = f"{held}: {size} more would be above its share of {self._bytes.total}"
        return Outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, f"overloaded: {full}") if full else None

    def add(self, key: Key, size: int) -> None:
        """Count a request that was admitted."""
        shares = self._shares[key.caller] = self._shares_of(key.caller)
        shares[0].add()
        shares[1].add(size)
        if key.id:
            self._keys.add(key)

    def remove(self, key: Key, size: int, *, answered: bool) -> None:
        """Remove an ended request from the counts; an `answered` one's key is remembered, so it cannot be reused."""
        shares = self._shares[key.caller]
        shares[0].give()
        shares[1].give(size)
        if not shares[0].held:
            del self._shares[key.caller]
        if not key.id:
            return
        self._keys.discard(key)
        if answered:
            self._answered[key] = None
            if len(self._answered) > REMEMBERED_IDS:
                self._answered.popitem(last=False)

    def _shares_of(self, caller: str) -> tuple[PeerShare, PeerShare]:
        return self._shares.get(caller) or (self._requests.share_of(caller), self._bytes.share_of(caller))
