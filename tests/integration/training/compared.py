"""A model trained by the ranks of a pool, compared with plain torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.rank_pool import Crashed, RankPool, Refused
from tests.support.trained_models import PlainTorch, Training, difference, document_of

EXACT = 1e-7  # of float64; the order of additions differs, and three updates of adam enlarge it
ROUNDED = 1e-4  # of a model with complex64 weights
_BEFORE = "UntrainableError"  # what a person must change is said before the first epoch


@dataclass(frozen=True)
class ComparedTraining:
    """A model by its name in messages, and the document that trains it.

    `count`: (inputs, targets) of some rows -> how much they count in the loss; None: each row the same.
    """

    name: str
    settings: Mapping[str, Any]
    optimizer: Callable[..., torch.optim.Optimizer]
    options: Mapping[str, Any]
    count: Callable[[Any, Any], float] | None = None

    def __str__(self) -> str:
        layout = {key: self.settings.get(key) for key in ("devices", "replicas", "schedule")}
        return f"{self.name} {layout}"


@dataclass(frozen=True)
class Verdict:
    """`wrong`: what is neither plain torch nor a refusal before the first epoch. `refusal`: its text."""

    training: ComparedTraining
    wrong: str = ""
    refusal: str = ""

    def __str__(self) -> str:
        return f"{self.training}: {self.wrong}{self.refusal}"


def compared(training: ComparedTraining, pool: RankPool) -> Verdict:
    """Train a model and compare it."""
    settings = training.settings
    with tempfile.TemporaryDirectory() as folder:
        result = pool.run(Training(folder, settings), document_of(settings).ranks)
    if isinstance(result, Crashed):
        return Verdict(training, wrong=result.trace)
    if isinstance(result, Refused):
        if result.kind == _BEFORE:
            return Verdict(training, refusal=result.message)
        return Verdict(training, wrong=f"{result.kind}: {result.message}")
    module, _ = PlainTorch(settings, training.optimizer, training.options, training.count).trained()
    expected = module.state_dict()
    copies = settings.get("replicas", 1) > 1 or settings.get("schedule") == "chimera"
    statistics = {name for name, _ in module.named_buffers()} if copies else set()
    far, name = difference(
        {key: value for key, value in result.items() if key not in statistics},
        {key: value for key, value in expected.items() if key not in statistics},
    )
    exact = ROUNDED if any(value.dtype is torch.complex64 for value in expected.values()) else EXACT
    return Verdict(training, "" if far <= exact else f"{name} differs by {far:.2g}")
