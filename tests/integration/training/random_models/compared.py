"""A random model trained by the ranks of a pool, compared with plain torch."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch

from tests.integration.training.random_models.models import RandomTraining, random_training
from tests.support.rank_pool import Crashed, RankPool, Refused
from tests.support.trained_models import PlainTorch, Training, difference, document_of

EXACT = 1e-7  # of float64; the order of additions differs, and three updates of adam enlarge it
ROUNDED = 1e-4  # of a model with complex64 weights
_BEFORE = "UntrainableError"  # what a person must change is said before the first epoch


@dataclass(frozen=True)
class Verdict:
    """`wrong`: what is neither plain torch nor a refusal before the first epoch. `refusal`: its text."""

    training: RandomTraining
    wrong: str = ""
    refusal: str = ""

    def __str__(self) -> str:
        layout = {key: self.training.settings.get(key) for key in ("devices", "replicas", "schedule")}
        return f"model {self.training.number} ({', '.join(self.training.blocks)}; {layout}): {self.wrong}{self.refusal}"


def compared(number: int, pool: RankPool) -> Verdict:
    """Train the model of a number and compare it."""
    training = random_training(number)
    with tempfile.TemporaryDirectory() as folder:
        result = pool.run(Training(folder, training.settings), document_of(training.settings).ranks)
    if isinstance(result, Crashed):
        return Verdict(training, wrong=result.trace)
    if isinstance(result, Refused):
        before = result.kind == _BEFORE
        return (
            Verdict(training, refusal=result.message)
            if before
            else Verdict(training, f"{result.kind}: {result.message}")
        )
    module, _ = PlainTorch(training.settings, training.optimizer, training.options).trained()
    expected = module.state_dict()
    statistics = {name for name, _ in module.named_buffers()} if training.settings.get("replicas", 1) > 1 else set()
    if training.settings.get("schedule") == "chimera":
        statistics = {name for name, _ in module.named_buffers()}
    far, name = difference(
        {key: value for key, value in result.items() if key not in statistics},
        {key: value for key, value in expected.items() if key not in statistics},
    )
    exact = ROUNDED if any(value.dtype is torch.complex64 for value in expected.values()) else EXACT
    return Verdict(training, "" if far <= exact else f"{name} differs by {far:.2g}")
