"""Rows that cover what occurs: with many valid targets, with few, with none, and several of a class."""

from __future__ import annotations

import torch

from jellybean.training.losses import valid_targets
from jellybean.training.samples import Samples

_MOST_TARGETS = 2**22  # that are counted; of more, those of evenly spaced rows


def covering_rows(samples: Samples, size: int) -> torch.Tensor:
    """Numbers of `size` rows, by falling number of valid targets; those of one class are next to each other.

    Pairs of neighbours in that order are taken at even distances, so that a loss that compares rows of a class, or of
    two, has both.
    """
    numbers = _counted_rows(samples)
    some = samples if len(numbers) == len(samples) else samples.take(numbers)
    classes = some.classes
    order = torch.arange(len(some))
    if classes is not None and classes[0].numel() == 1:
        order = order[classes.reshape(-1).argsort(stable=True)]
    order = order[valid_targets(some)[order].argsort(stable=True, descending=True)]
    if size >= len(order):
        return numbers[order]
    pairs = torch.linspace(0, len(order) - 2, -(-size // 2)).long()
    places = torch.stack([pairs, pairs + 1], dim=1).reshape(-1).unique()
    free = torch.ones(len(order), dtype=torch.bool).index_fill(0, places, False).nonzero().reshape(-1)
    places = torch.cat([places, free[: max(0, size - len(places))]])[:size].sort().values
    return numbers[order[places]]


def labelled_rows(samples: Samples, size: int) -> torch.Tensor | slice:
    """The first rows, or, if rows differ in their number of valid targets, rows that cover these numbers."""
    counts = valid_targets(samples.take(_counted_rows(samples)))
    return slice(0, size) if bool((counts == counts[0]).all()) else covering_rows(samples, size)


def _counted_rows(samples: Samples) -> torch.Tensor:
    classes = samples.classes
    targets = 1 if classes is None else classes[0].numel()
    most = max(2, _MOST_TARGETS // max(1, targets))
    if len(samples) <= most:
        return torch.arange(len(samples))
    return torch.linspace(0, len(samples) - 1, most, dtype=torch.float64).long()
