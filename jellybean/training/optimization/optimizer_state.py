"""What the state of a user's optimizer must be: by parameter, and of tensors and numbers.

Stages have optimizers of their own, and checkpoints hold a state by the name of its parameter. A step must not depend
on what other parameters there are, nor keep anything in a parameter group or in the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from jellybean.training.errors import TrainingError

_STEPS = 3
MakeOptimizer = Callable[[Mapping[int, Sequence[nn.Parameter]]], torch.optim.Optimizer]


def check_state(plan: Any) -> None:
    """TrainingError if an optimizer's state is not that of its parameters alone."""
    for group in range(len(plan.groups)):
        _check_group(plan.made_of, group, f"optimizer: {plan.made.__name__}")


def _check_group(make: MakeOptimizer, group: int, name: str) -> None:
    together, apart = _parameters(), _parameters()
    optimizers = [make({group: together}), *(make({group: [value]}) for value in apart)]
    before = _settings(optimizers[0])
    for step in range(_STEPS):
        for values, some in ((together, optimizers[:1]), (apart, optimizers[1:])):
            for number, value in enumerate(values):
                value.grad = torch.linspace(-1, 2, value.numel()).reshape(value.shape) * (number + 1 + step)
            for optimizer in some:
                optimizer.step()
    _check_values(optimizers[0], name)
    changed = [key for key, value in _settings(optimizers[0]).items() if before.get(key) != value]
    if changed:
        raise TrainingError(
            f"{name} keeps {', '.join(map(repr, changed))} in its parameter group or in itself, which checkpoints do "
            "not hold: keep it in `self.state[parameter]`"
        )
    if not all(torch.allclose(*pair) for pair in zip(together, apart, strict=True)):
        raise TrainingError(
            f"{name} steps a parameter in another way where there are others beside it; stages have optimizers of "
            "their own, so that a step must follow from a parameter, its gradient and its state"
        )


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.linspace(1, 2, 6).reshape(2, 3)), nn.Parameter(torch.linspace(3, 1, 12).reshape(3, 4))]


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The values of the only group and of the optimizer, as text: what is compared may be of any type."""
    (group,) = optimizer.param_groups
    of_torch = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    own = {f"self.{key}": value for key, value in vars(optimizer).items() if key not in of_torch}
    return {key: repr(value) for key, value in (group | own).items() if key != "params"}


def _check_values(optimizer: torch.optim.Optimizer, name: str) -> None:
    for state in optimizer.state.values():
        for key, value in state.items():
            if "/" in str(key) or not isinstance(key, str):
                raise TrainingError(f"{name} has a state called {key!r}: checkpoints need a name without a slash")
            if not isinstance(value, torch.Tensor | int | float):
                raise TrainingError(
                    f"{name} has the state {key!r}, a {type(value).__name__}, and checkpoints hold tensors and numbers"
                )
