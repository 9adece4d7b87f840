"""Imports all `pipeline` commands, in the order of the help."""

from __future__ import annotations

from jellybean.cli.pipeline import collectives, estimate, hybrid, partition, schedules, tensor, wpipe

__all__ = ["collectives", "estimate", "hybrid", "partition", "schedules", "tensor", "wpipe"]
