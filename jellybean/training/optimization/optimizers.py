"""Optimizers of torch.optim, or of the user, for a model: parameter groups by name, and the size of their state.

A parameter's group follows from its names in the whole model, so it does not depend on the stage that holds it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents.training import OptimizerSpec
from jellybean.pipeline.user_errors import user_frame
from jellybean.quantities import did_you_mean
from jellybean.training.errors import TrainingError
from jellybean.training.optimization.optimizer_state import check_state
from jellybean.training.optimization.torch_classes import (
    check_arguments,
    check_names,
    find_class,
    load_class,
    without_lists,
)
from jellybean.training.stages.updates import GROUP

Arguments = Mapping[str, Any]
_REFUSED = {
    "LBFGS": "it evaluates the loss several times in an update, and a pipeline evaluates it once; adamw is the usual "
    "choice",
    "SparseAdam": "it needs sparse gradients, and gradients are reduced as dense tensors; adam takes these",
}
_RESERVED = ("params", "differentiable")  # `differentiable` keeps the graph of every update
_SIZES = (2, 3, 5, 7, 11, 13, 17)  # sides of a tiny parameter, all different: they tell which side a state has


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer of a model. `groups[g]`: all arguments of group g. `group_of`: parameter name -> g, all names.

    `arguments`: of the class, for what no group changes.
    """

    made: type[torch.optim.Optimizer]
    groups: tuple[Arguments, ...]
    group_of: Mapping[str, int]
    arguments: Arguments = field(default_factory=dict)

    def make(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of some of the model's parameters, by name."""
        members: dict[int, list[nn.Parameter]] = {}
        for name, value in parameters.items():
            members.setdefault(self.group_of[name], []).append(value)
        return self.made_of(members)

    def make_empty(self) -> torch.optim.Optimizer:
        """The optimizer with all groups in order and nothing to train, on which a scheduler computes settings."""
        return self.made_of({group: [nn.Parameter(torch.zeros(1, 1))] for group in range(len(self.groups))})

    def made_of(self, members: Mapping[int, Sequence[nn.Parameter]]) -> torch.optim.Optimizer:
        """The optimizer of some parameters by group."""
        groups = [{"params": [*values], GROUP: group, **self.groups[group]} for group, values in members.items()]
        return self.made(groups, **self.arguments)

    def states_per_weight(self, module: nn.Module) -> float:
        """Bytes of optimizer state per byte of trained weights, on average over the model.

        Measured by one step on a tiny parameter per number of dimensions, as a state may be smaller than its weight
        (Adafactor keeps a row and a column of a matrix). 0 if nothing is trained.
        """
        measured: dict[tuple[int, int], list[tuple[int | None, ...]]] = {}
        weights = states = 0
        for name, value in module.named_parameters():
            key = (self.group_of[name], value.dim())
            if not value.requires_grad or value.dim() > len(_SIZES):
                continue
            if key not in measured:
                measured[key] = self._state_sides(*key)
            weights += value.numel()
            states += sum(
                math.prod(1 if side is None else value.shape[side] for side in sides) for sides in measured[key]
            )
        return states / weights if weights else 0.0

    def state_keys(self, group: int, dimensions: int) -> frozenset[str]:
        """What the state of a parameter has after a step, by its group and number of dimensions."""
        return frozenset(self._first_state(group, dimensions))

    def _first_state(self, group: int, dimensions: int) -> Mapping[str, Any]:
        """The state of a tiny parameter after one step."""
        tiny = nn.Parameter(torch.ones(_SIZES[:dimensions]))
        tiny.grad = torch.ones_like(tiny)
        optimizer = self.made_of({group: [tiny]})
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state: Mapping[str, Any] = optimizer.state[tiny]
        return state

    def _state_sides(self, group: int, dimensions: int) -> list[tuple[int | None, ...]]:
        """For each state tensor of a parameter: the parameter's dimension that each of its sides has, None for 1."""
        state = self._first_state(group, dimensions)
        tensors = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim()]
        return [tuple(_SIZES.index(side) if side in _SIZES else None for side in value.shape) for value in tensors]


def plan_optimizer(spec: OptimizerSpec, module: nn.Module, directory: Path = Path()) -> OptimizerPlan:
    """The document's optimizer for a model. TrainingError if the class, an argument or a pattern does not fit."""
    if spec.of_user:
        made = load_class(spec.name, torch.optim.Optimizer, directory, "optimizer")
    else:
        made = find_class(torch.optim, torch.optim.Optimizer, spec.name, _REFUSED, "optimizer")
    no_decay = {"weight_decay": 0.0} if "weight_decay" in inspect.signature(made).parameters else {}
    base = {**no_decay, **_checked(made, spec.arguments, "optimizer")}
    names = _names(module)
    matched: dict[int, list[int]] = {}
    for number, group in enumerate(spec.groups):
        members = [key for key, texts in names.items() if any(fnmatchcase(text, group.match) for text in texts)]
        if not members:
            every = [text for texts in names.values() for text in texts]
            near = did_you_mean(group.match, every) or f"the first are {', '.join(every[:4])}"
            raise TrainingError(f"optimizer.groups[{number}]: no parameter is named like {group.match!r}; {near}")
        for key in members:
            matched.setdefault(key, []).append(number)
    overrides = [
        _group_arguments(made, group.arguments, f"optimizer.groups[{number}]", any_key=spec.of_user)
        for number, group in enumerate(spec.groups)
    ]
    combinations = sorted({tuple(matched.get(key, ())) for key in names})
    groups = tuple({**base, **{k: v for n in chosen for k, v in overrides[n].items()}} for chosen in combinations)
    plan = OptimizerPlan(
        made,
        groups,
        {text: combinations.index(tuple(matched.get(key, ()))) for key, texts in names.items() for text in texts},
        base,
    )
    _try(plan, module)
    if spec.of_user:
        check_state(plan)
    return plan


def _names(module: nn.Module) -> dict[int, list[str]]:
    """All names of each parameter; a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return names


def _checked(made: type[torch.optim.Optimizer], given: Arguments, where: str) -> dict[str, Any]:
    check_arguments(made, given, where, _RESERVED)
    return {name: without_lists(value) for name, value in given.items()}


def _group_arguments(
    made: type[torch.optim.Optimizer], given: Arguments, where: str, *, any_key: bool
) -> dict[str, Any]:
    """`any_key`: the class may read keys of a group that are no arguments of its own."""
    if not any_key:
        check_names(made, given, where, _RESERVED)
    return {name: without_lists(value) for name, value in given.items()}


def _try(plan: OptimizerPlan, module: nn.Module) -> None:
    """Make the optimizer and step it on tiny parameters, so that wrong values are reported before training."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    try:
        for number, group in enumerate(plan.groups):  # the class checks its arguments, but not those of groups
            known = inspect.signature(plan.made).parameters
            arguments = {name: value for name, value in group.items() if name in known or name in plan.arguments}
            plan.made([nn.Parameter(torch.zeros(1, 1))], **arguments)
            plan.made_of({number: [nn.Parameter(torch.zeros(1, 1))]})
        if trained:
            plan.make(trained)
    except Exception as error:  # torch raises ValueError, TypeError and others
        raise TrainingError(
            f"optimizer: {plan.made.__name__} does not take these arguments{_at_line(error)}"
        ) from error
    try:
        plan.states_per_weight(module)
    except Exception as error:  # user code may raise anything
        raise TrainingError(
            f"optimizer: {plan.made.__name__} cannot make a step, which gets no closure{_at_line(error)}"
        ) from error


def _at_line(error: Exception) -> str:
    """Its place, if that is the user's, and what it says."""
    frame = user_frame(error)
    return f"{f' at {frame.filename}:{frame.lineno}' if frame is not None else ''}: {error}"
