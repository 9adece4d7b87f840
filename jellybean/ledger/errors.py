"""Errors of the ledger."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class LedgerError(JellyBeanError):
    """The ledger cannot be read or written; the message says what to do."""


class NoAnswerError(LedgerError):
    """No kept answer is the one that a label is for."""
