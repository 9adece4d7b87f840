"""Numeric precisions of a run."""

from __future__ import annotations

import torch


def autocast_type(precision: str) -> torch.dtype | None:
    """The type in which autocast computes; None: the weights' own type. `precision`: as in training.yaml."""
    return torch.bfloat16 if precision == "bfloat16" else None
