"""A transformer layer with a linear layer each for queries, keys and values, as torch's tutorial of parallelize_module
has it: the number of heads in a view is -1, so that it runs on parts.
"""

from __future__ import annotations

import torch
from torch import nn


class TransformerLayer(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Attention, then an MLP of four times the width, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.back = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, _ = x.shape
        y = self.norm_1(x)
        heads = [
            layer(y).view(samples, tokens, -1, self.head_width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.back(mixed.transpose(1, 2).reshape(samples, tokens, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
