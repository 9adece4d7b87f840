"""The parts of an explanation: they are published as they are solved, the most valuable first."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """The parts of an explanation, in the order in which they are solved.

    Of a plan: `PLAN` to `CHOICES`. Without a plan: `REASON`, `CONFLICT` (its members), and `RELAXATION` once for each
    member.
    """

    PLAN = "plan"
    WHY_NOT = "why_not"
    LIMITS = "limits"
    VALUES = "values"
    CHOICES = "choices"
    REASON = "reason"
    CONFLICT = "conflict"
    RELAXATION = "relaxation"
