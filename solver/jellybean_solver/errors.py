"""Exceptions of the solver and of the packages that build on it."""

from __future__ import annotations


class JellyBeanError(Exception):
    """Base class of all errors that a user may cause; the CLI prints the message without a traceback."""


class SolverError(JellyBeanError):
    """The solver could not answer: no incumbent in time, or a numerical failure."""


class OutOfTimeError(SolverError):
    """The time limit was reached without an answer; a longer limit may give one.

    `bound`: lower bound on the objective that is known by then; 0 without one.
    """

    def __init__(self, message: str, bound: float = 0.0) -> None:
        super().__init__(message)
        self.bound = bound
