"""`--rate-scale` of `plan`: all sources' rates times a factor, as overrides that other commands take too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.documents import load_any_project, scaled_rates


def with_scaled_rates(directory: Path, overrides: Sequence[str], factor: float) -> list[str]:
    """The overrides with the rates times `factor`. DocumentError for invalid documents.

    A source of streams has more of them, rather than faster ones.
    """
    if factor == 1.0:
        return list(overrides)
    project = load_any_project(directory, overrides, profiles=False)
    return [*overrides, *map(str, scaled_rates(project, factor, digits=None))]
