"""What a published model is trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Published:
    """A model, its data, and its loss, as training.yaml names them.

    `counts`: what the loss is a mean over: "rows", "targets" or "labels" that are not ignored,
    "shifted labels". `divided`: False of
    a loss that compares the rows of a batch, which trains in one micro-batch. `large`: takes more than some seconds.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: str
    counts: str = "rows"
    divided: bool = True
    large: bool = False
