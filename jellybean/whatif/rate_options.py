"""Rates of sources as `--set` options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jellybean_solver import WORKFLOW_SEPARATOR


def rate_options(rates_per_s: Mapping[str, float]) -> Iterator[str]:
    """An option for each source that has requests."""
    for source, rate in rates_per_s.items():
        workflow, separator, name = source.rpartition(WORKFLOW_SEPARATOR)
        if rate > 0:
            yield f"{workflow}.sources.{name}.rate={rate:.6g}/s" if separator else f"sources.{name}.rate={rate:.6g}/s"
