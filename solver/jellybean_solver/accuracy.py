"""Accuracy of a selection, and the most that a partial selection can still reach.

Three ways to state it, as profiles do: measured end to end per selection; per operator as a function of its inputs'
accuracies (JellyBean, VLDB 2023, section 4); independent per operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class AccuracyModel(Protocol):
    """What model selection needs to know about accuracy."""

    def value(self, selection: Mapping[str, str]) -> float | None:
        """Accuracy of a complete selection (operator -> variant); None when the profile does not know it."""
        ...

    def upper_bound(self, partial: Mapping[str, str]) -> float | None:
        """No completion of `partial` exceeds it; None when no completion is known to the profile.

        Together with `value` this is what the upstream operators still owe: a partial selection whose bound is
        below the target is dropped.
        """
        ...
