"""Which of the requests that wait for other inputs have to fail, for the memory of what a sender has sent for them.

A sender's bytes are in requests that others have begun, too: it may be any operator upstream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from jellybean_agent.brain.request_state import RequestState


class LargestWaiting:
    """The requests that hold most of a sender's bytes, one after another, the oldest of those that hold as many.

    All requests are looked at once for half of those that were found, as there may be many for one that is large.
    """

    __slots__ = ("_found", "_requests")

    def __init__(self, requests: Mapping[str, RequestState]) -> None:
        self._requests = requests
        self._found: dict[str, list[str]] = {}  # sender -> requests, of which the last one holds most

    def take(self, sender: str) -> str | None:
        """The next request, which the caller must end; None if none waits that has bytes of the sender."""
        found = self._found.get(sender, [])
        while found:
            if self._waits(request := found.pop(), sender):
                return request
        self._look()
        found = self._found.get(sender, [])
        return found.pop() if found else None

    def _waits(self, request: str, sender: str) -> bool:
        state = self._requests.get(request)
        return state is not None and any(sender in pending.claims for pending in state.pending.values())

    def _look(self) -> None:
        sizes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for request, state in self._requests.items():
            for pending in state.pending.values():
                for sender, size in pending.claims.items():
                    sizes[sender][request] = sizes[sender].get(request, 0) + size
        self._found = {sender: _larger_half(of_sender) for sender, of_sender in sizes.items()}


def _larger_half(sizes: Mapping[str, int]) -> list[str]:
    ordered = sorted(sizes, key=sizes.__getitem__, reverse=True)[: (len(sizes) + 1) // 2]
    return ordered[::-1]
