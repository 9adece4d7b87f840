"""Errors of training; the message says what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean.errors import JellyBeanError

_SHOWN = 4  # names of a list in a message


class TrainingError(JellyBeanError):
    """A model, document or checkpoint that cannot be trained; a restart would not help."""


class RankLostError(TrainingError):
    """Another rank died or stopped responding: all ranks restart from the newest checkpoint."""


class StalledError(RankLostError):
    """A rank stalls, or no rank makes progress; reported in preference to errors of ranks that end because of it."""


class RankCrashError(TrainingError):
    """An unexpected exception: all ranks restart, but not twice for the same exception."""


class ReportedError(TrainingError):
    """Ends this process; its reason was already reported to the launcher."""


class SignalledError(KeyboardInterrupt):
    """A signal ends the run. A KeyboardInterrupt, so that handlers of user exceptions do not catch it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


def first_names(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are, for messages."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
