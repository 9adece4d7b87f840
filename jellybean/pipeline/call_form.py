"""How a flat list of tensors nests in the arguments or the result of a module."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

# torch warns of its own code when a structure is copied or pickled.
warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)


@dataclass(frozen=True)
class CallForm:
    """How a flat list of tensors nests in a structure. `places`: their positions among its leaves."""

    spec: Any
    places: tuple[int, ...]
    constants: tuple[Any, ...]

    def nest(self, tensors: Sequence[Any]) -> Any:
        """The structure with these tensors in it."""
        leaves = list(self.constants)
        for place, value in zip(self.places, tensors, strict=True):
            leaves[place] = value
        return pytree.tree_unflatten(leaves, self.spec)

    def call(self, module: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call the module with arguments that nest like this."""
        args, kwargs = self.nest(tensors)
        return module(*args, **kwargs)


def step_into(step: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """How one step of a leaf's path is taken: a function of the structure and of the second value, such as a key."""
    if isinstance(step, pytree.GetAttrKey):  # of a named tuple or a data class
        return getattr, step.name
    return operator.getitem, getattr(step, "key", getattr(step, "idx", None))
