"""The user's own module as the only stage of a run: no graph stands between, so nothing of it can be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from jellybean.pipeline.call_form import CallForm
from jellybean.training.stages.cut import CutModule, CutStage
from jellybean.training.stages.evaluation_cut import EvaluationCut
from jellybean.training.stages.stage import StageInputs

_SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")


class WholeModel(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Calls a module with flat tensors, under the names of its weights. It returns the tensors of the result.

    `nest` gives the result of the last call, as the module returned it, with these tensors in it.
    """

    def __init__(self, module: nn.Module, arguments: CallForm) -> None:
        super().__init__()
        self.__dict__.update({name: module.__dict__[name] for name in _SHARED})
        self.__dict__["model"] = module  # beside the submodules, whose names are the model's
        self._arguments = arguments
        self._result: CallForm | None = None

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The tensors of what the module returns."""
        leaves, spec = pytree.tree_flatten(self._arguments.call(self.model, tensors))
        places = tuple(number for number, value in enumerate(leaves) if isinstance(value, torch.Tensor))
        others = tuple(None if isinstance(value, torch.Tensor) else value for value in leaves)
        self._result = CallForm(spec, places, others)
        return tuple(leaves[place] for place in places)

    def nest(self, tensors: Sequence[Any]) -> Any:
        """The result of the last call with these tensors. May be called once."""
        form, self._result = self._result, None
        if form is None:
            raise AssertionError("the model was not called")
        return form.nest(tensors)

    def train(self, mode: bool = True) -> WholeModel:
        """Set the mode of the module, by its own method."""
        self.model.train(mode)
        self.training = mode
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> WholeModel:
        self.model._apply(fn, recurse)
        return self


def whole_stage(module: nn.Module, arguments: CallForm, state: frozenset[str]) -> tuple[CutModule, EvaluationCut]:
    """The stages of training and of evaluation. `state`: names of the buffers that training updates."""
    inputs = StageInputs(tuple(range(len(arguments.places))), (), expects_gradient=True)
    training, evaluation = (
        CutModule((CutStage(WholeModel(module, arguments), inputs, (), state),), {}) for _ in range(2)
    )
    names = {name: name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return training, EvaluationCut(evaluation, (names,))
