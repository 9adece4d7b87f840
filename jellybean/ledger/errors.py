"""Errors of the ledger."""

from __future__ import annotations

from jellybean_solver import JellyBeanError

LABELLED_ALREADY = "has its label already"  # how the problem of a second label ends


class LedgerError(JellyBeanError):
    """The ledger cannot be read or written; the message says what to do."""


class NoAnswerError(LedgerError):
    """No kept answer is the one that a label is for."""
