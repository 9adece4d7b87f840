"""Master copies of weights in a short type (mixed precision with float32 masters, Micikevicius et al. 2018).

The computation uses weight matrices in the short type. The optimizer updates float32 copies, from which they are
rounded: an update is often too small to change a short weight. Vectors (biases, norms) keep their type: they are few,
and norms need it.
"""

from __future__ import annotations

import torch
from torch import nn


class MasterWeights:
    """The master copies of one rank; stages that share a weight share its copy. `short`: type of weight matrices."""

    def __init__(self, short: torch.dtype) -> None:
        self._short = short
        self._copies: dict[int, torch.Tensor] = {}

    def shorten(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Round a parameter. Returns its master copy; None for vectors, and for frozen matrices, which stay rounded."""
        if parameter.dim() < 2 or not parameter.is_floating_point():
            return None
        if id(parameter) not in self._copies:
            if parameter.requires_grad:
                self._copies[id(parameter)] = parameter.data.float()
            parameter.data = parameter.data.to(self._short)
        return self._copies.get(id(parameter))
