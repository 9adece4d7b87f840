"""Exceptions of the solver and of the packages that build on it."""

from __future__ import annotations


class JellyBeanError(Exception):
    """Base class of all errors that a user may cause; the CLI prints the message without a traceback."""


class SolverError(JellyBeanError):
    """The solver could not answer: no incumbent in time, or a numerical failure."""


class OutOfTimeError(SolverError):
    """The time limit was reached without an answer; a longer limit may give one."""
