"""The exception tree of the whole project's pure part."""

from __future__ import annotations


class JellyBeanError(Exception):
    """Root of every error a user may cause; the CLI prints its text and no traceback."""


class SolverError(JellyBeanError):
    """The solver could not answer: no incumbent in time, or a numerical failure."""


class OutOfTimeError(SolverError):
    """Time ended before there was an answer; more of it may give one."""
