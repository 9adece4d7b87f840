"""Colours of the terminal: one colour, one meaning, as in `palette`."""

from __future__ import annotations

GOOD, WARN, BAD = "green", "yellow", "red"  # verdicts: as it should be; look at it; missed or failed
LOAD = "cyan"  # how busy a worker is
