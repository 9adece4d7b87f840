"""Derandomised examples that depend on the test alone, not on what else was imported.

Hypothesis draws some values from the constants of the project's modules that are imported by then: another order of
tests, or another share of them, drew other values from the same seed.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def use_repeatable_examples() -> None:
    """Have all tests of this process draw without the constants of imported modules; no setting turns them off."""
    providers._get_local_constants = Constants
