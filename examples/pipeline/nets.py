"""Two small networks and the handwritten digits of scikit-learn (1,797 pictures of 8 x 8)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn


class Block(nn.Module):
    """One layer of a transformer over the rows of a picture."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix, self.back = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, rows, width = x.shape
        parts = self.mix(self.norm(x)).reshape(n, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.back(seen.transpose(1, 2).reshape(n, rows, width))
        return x + self.feed(x)


class Transformer(nn.Module):
    """Each row of eight pixels is a token."""

    def __init__(self, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        self.into = nn.Linear(8, width)
        self.place = nn.Parameter(torch.zeros(1, 8, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.into(pictures) + self.place)).mean(1))


class Conv(nn.Module):
    """Convolutions with a skip connection from the first."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.more = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(6))
        self.pool, self.head = nn.AvgPool2d(2), nn.Linear(16 * channels, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        early = x = torch.relu(self.first(pictures[:, None]))
        for layer, norm in zip(self.more, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return self.head(self.pool(x + early).flatten(1))


def transformer() -> nn.Module:
    return Transformer()


def conv() -> nn.Module:
    return Conv()


def digits() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """1,437 rows to train on and 360 to measure on."""
    given = load_digits()
    pictures = torch.tensor(given.images, dtype=torch.float32) / 16
    classes = torch.tensor(given.target)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return {"train": (pictures[train], classes[train]), "test": (pictures[test], classes[test])}
