"""Whether an optimizer takes the sparse gradients that a model has, of embeddings with `sparse=True`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from jellybean.training.errors import TrainingError, first_names
from jellybean.training.optimization.optimizers import OptimizerPlan

_STEPS = 2  # the first one of momentum differs from later ones


@contextmanager
def sparse_weights(module: nn.Module) -> Iterator[list[str]]:
    """Context whose list then has the names of the weights that a backward pass in it gave a sparse gradient."""
    sparse: list[str] = []

    def watch(name: str, weight: nn.Parameter) -> torch.utils.hooks.RemovableHandle:
        def note(value: torch.Tensor) -> None:
            if value.grad is not None and value.grad.is_sparse:
                sparse.append(name)

        return weight.register_post_accumulate_grad_hook(note)

    hooks = [watch(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    try:
        yield sparse
    finally:
        for hook in hooks:
            hook.remove()


def check_sparse_steps(plan: OptimizerPlan, names: Sequence[str]) -> None:
    """TrainingError if the optimizer cannot step weights of these names, whose gradients are sparse."""
    for group in sorted({plan.group_of[name] for name in names}):
        tiny = nn.Parameter(torch.zeros(3, 2))
        optimizer = plan.made([tiny], **plan.groups[group])
        try:
            for _ in range(_STEPS):
                tiny.grad = torch.ones(3, 2).to_sparse(1)
                optimizer.step()
        except Exception as error:  # torch raises RuntimeError, others anything
            members = [name for name, number in plan.group_of.items() if number == group and name in names]
            raise TrainingError(
                f"{first_names(members)} has sparse gradients, which {plan.made.__name__} does not take as the "
                f"document sets it: {error}; make the layer with sparse=False, or take plain sgd or adagrad"
            ) from error
