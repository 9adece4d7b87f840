"""Claims of peers beyond the plan: counted by sender, and the first of each kind is logged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container

from jellybean_agent.telemetry.printable import printable

UNKNOWN_SENDER = "?"
_MAX_TEXT = 200  # characters of what a peer states that are shown


class RefusedClaims:
    """Counts and logs claims that were dropped. `known`: names that senders may have.

    All other names count as one: without certificates a caller may state any number of them.
    """

    def __init__(self, logger: logging.Logger, known: Container[str]) -> None:
        self.counts = Counter[str]()  # by sender
        self._logger, self._known = logger, known
        self._last: dict[str, str] = {}  # sender -> kind of its last claim
        self._logged: set[tuple[str, str]] = set()

    def refuse(self, sender: str, kind: str, example: str = "", count: int = 1) -> None:
        """Count claims of a sender. `kind`: one of few texts; `example`: what it states, shown once."""
        name = sender if sender in self._known else UNKNOWN_SENDER
        self.counts[name] += count
        self._last[name] = kind
        if (name, kind) not in self._logged:
            self._logged.add((name, kind))
            stated = f": {printable(example, _MAX_TEXT)}" if example else ""
            text = "%s %s%s; claims of this kind are beyond the plan: they are dropped and counted"
            self._logger.warning(text, name or "a gateway", kind, stated)

    def note(self, sender: str) -> str:
        """What a person should know of a sender; empty if none of its claims was refused."""
        count = self.counts.get(sender, 0)
        return f"claims refused: {count}; the last: it {self._last[sender]}" if count else ""
