"""Which routes of a plan are closed, as the gateways of all its workflows in this process see it.

After a loss workflows may have to leave workers to those that survive it, even where no route of their own is closed.
So each of them tells the others which of its routes are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class ClosedRoutes:
    """The closed routes of one plan, by their numbers in it, for each of its sites."""

    def __init__(self) -> None:
        self._of: dict[str, Sequence[frozenset[int]]] = {}  # by workflow
        self._on_change: dict[str, Callable[[], None]] = {}
        self._gone: set[str] = set()  # workflows that are served no more, whatever they still say

    def listen(self, workflow: str, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever other routes of another workflow are closed."""
        self._on_change[workflow] = on_change
        self._gone.discard(workflow)

    def leave(self, workflow: str, on_change: Callable[[], None]) -> None:
        """Forget a workflow that is served no more, unless another one listens for it by now."""
        if self._on_change.get(workflow) == on_change:
            del self._on_change[workflow]
            self._gone.add(workflow)
            if self._of.pop(workflow, None) is not None:
                self._tell_others(workflow)

    def elsewhere(self, workflow: str, site: int) -> frozenset[int]:
        """The closed routes of the other workflows at a site."""
        return frozenset().union(*(closed[site] for name, closed in self._of.items() if name != workflow))

    def state(self, workflow: str, closed: Sequence[frozenset[int]]) -> None:
        """Say which routes of a workflow are closed now, site by site."""
        if workflow in self._gone or self._of.get(workflow) == closed:
            return
        self._of[workflow] = closed
        self._tell_others(workflow)

    def _tell_others(self, workflow: str) -> None:
        for name, on_change in [*self._on_change.items()]:
            if name != workflow:
                on_change()
