"""How far a search is, for people who wait."""

from __future__ import annotations

from collections.abc import Callable

MOST_SHARE = 0.95  # of the work that is said to be done before the end

Tell = Callable[[float, str], None]  # share of the work that is done, and what is known


class Work:
    """Counts workflows as they are solved. `expected`: how many solves the search will take, about."""

    def __init__(self, expected: int, tell: Tell) -> None:
        self._expected, self._tell = expected, tell
        self._solved, self._known = 0, ""

    def add(self, solved: int) -> None:
        """So many workflows more are solved."""
        self._solved += solved
        self._report()

    def known(self, text: str) -> None:
        """What is known from now on."""
        self._known = text
        self._report()

    def _report(self) -> None:
        share = min(self._solved / max(self._expected, 1), MOST_SHARE)
        self._tell(share, "; ".join(filter(None, (f"{self._solved:,} workflows solved", self._known))))
