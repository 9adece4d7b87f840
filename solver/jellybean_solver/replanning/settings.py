"""Defaults of re-planning that documents state too, apart from the search, which takes long to import."""

from __future__ import annotations

LEAST_SAVED_SHARE = 0.02  # of the running plan's cost over the horizon, which a change must save
