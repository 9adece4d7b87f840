"""Errors of training; the message says what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jellybean.errors import InputError, JellyBeanError, SolverError

_SHOWN = 4  # names of a list in a message


class TrainingError(JellyBeanError):
    """A model, document or checkpoint that cannot be trained; a restart would not help."""


class UntrainableError(TrainingError, InputError):
    """The document, its model or its data cannot be trained as they are; found before training begins."""


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


@contextmanager
def refusals() -> Iterator[None]:
    """Context of a run's set-up, in which errors that a person must fix are those of what the person gave."""
    try:
        yield
    except JellyBeanError as error:
        if type(error) in (TrainingError, SolverError, JellyBeanError):
            raise UntrainableError(str(error)) from error
        raise


def first_names(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are, for messages."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
