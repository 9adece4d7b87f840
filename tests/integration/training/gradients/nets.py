"""Models with absent, sparse and complex gradients, weights of several names, and buffers made of weights."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

WORDS, WIDTH, ROWS = 20, 6, 22


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(ROWS, WIDTH, generator=_generator(1), dtype=torch.float64)
    return {"train": (x, x.mean(1, keepdim=True)), "test": (x[:5], x[:5].mean(1, keepdim=True))}


def ids() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    words = torch.randint(0, WORDS, (ROWS, 4), generator=_generator(2))
    y = torch.randn(ROWS, 1, generator=_generator(3), dtype=torch.float64)
    return {"train": (words, y), "test": (words[:5], y[:5])}


def sentences() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    words = torch.randint(0, WORDS, (ROWS, 4), generator=_generator(4))
    return {"train": (words, words.roll(-1, 1)), "test": (words[:5], words[:5].roll(-1, 1))}


class Tables(nn.Module):
    """Sparse tables, one of which is read twice, and one that only some rows of the data reach."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=sparse)
        self.table = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.late, self.head = nn.Embedding(WORDS, WIDTH, sparse=sparse), nn.Linear(WIDTH, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.bag(words) + self.table(words[:, 0]) * self.table(words[:, 1])
        return self.head(self.layers(hidden) + self.late(words[:, 2]))


def tables() -> nn.Module:
    return Tables().double()


class TiedTable(nn.Module):
    """A sparse table that the first and the last layer read, each by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last, self.head = nn.Embedding(WORDS, WIDTH, sparse=True), nn.Linear(WIDTH, 1)
        self.last.weight = self.first.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.first(words[:, 0])
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.head(hidden * self.last(words[:, 1]))


def tied_table() -> nn.Module:
    return TiedTable().double()


class SparseAndDense(nn.Module):
    """A table that is read by rows in the first layer and as a matrix in the last: its gradient is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.table(words)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.head(hidden)


def sparse_and_dense() -> nn.Module:
    return SparseAndDense().double()


class Unused(nn.Module):
    """Weights that no gradient reaches: of a layer under `detach`, of a spare one, and of one used in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head, self.dead, self.spare = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.calm = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = x + 0.1 * self.dead(x).detach()
        if not self.training:
            x = self.calm(x)
        return self.head(x)


def unused() -> nn.Module:
    return Unused().double()


class _Route(torch.autograd.Function):
    """Multiplies rows by a weight if any of them is large; gives the weight no gradient otherwise."""

    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        ctx.used = bool((x > 2.0).any())
        ctx.save_for_backward(x, weight)
        return x * weight if ctx.used else x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return (gradient * weight, (gradient * x).sum(0)) if ctx.used else (gradient, None)


class Branch(nn.Module):
    """A weight that has a gradient in some micro-batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale, self.head = nn.Parameter(torch.full((WIDTH,), 1.5)), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _Route.apply(x, self.scale)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def branch() -> nn.Module:
    return Branch().double()


class Complex(nn.Module):
    """Complex weights and activations between real ends, conjugated and negated views among them."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(WIDTH, WIDTH)] * 4
        self.weights = nn.ParameterList(torch.randn(shape, dtype=torch.complex64) / 3 for shape in shapes)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.fft.fft(x)
        for weight in self.weights:
            hidden = (hidden @ weight).conj()
            hidden = hidden * torch.sigmoid(hidden.conj().imag)
        return self.head(hidden.abs())


def complex_layers() -> nn.Module:
    return Complex().float()


def float_vectors() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {part: (x.float(), y.float()) for part, (x, y) in vectors().items()}


class Tied(nn.Module):
    """One weight with three names: two layers beside each other, and one at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head, self.again = nn.Linear(WIDTH, WORDS, bias=False), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.again.weight = self.words.weight
        self.layers[2].bias = self.layers[1].bias

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.head(hidden) + self.again(torch.relu(hidden))


def tied() -> nn.Module:
    return Tied().double()


def frozen_tied() -> nn.Module:
    module = Tied().double()
    module.words.weight.requires_grad_(False)
    return module


def _layers() -> nn.Sequential:
    parts = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 1)).double()


def spectral() -> nn.Module:
    layers = _layers()
    layers[2] = spectral_norm(layers[2])
    return layers


def spectral_parametrized() -> nn.Module:
    layers = _layers()
    layers[2] = parametrizations.spectral_norm(layers[2])
    return layers


def weight_normed() -> nn.Module:
    layers = _layers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and many models have it
        layers[2] = weight_norm(layers[2])
    return layers


def weight_parametrized() -> nn.Module:
    layers = _layers()
    layers[2] = parametrizations.weight_norm(layers[2])
    return layers


def orthogonal() -> nn.Module:
    layers = _layers()
    layers[2] = parametrizations.orthogonal(layers[2])
    return layers


def pruned() -> nn.Module:
    layers = _layers()
    prune.l1_unstructured(layers[2], "weight", amount=0.3)
    prune.random_unstructured(layers[4], "bias", amount=0.5)
    return layers


class Anchored(nn.Module):
    """Buffers that are computed from a weight: kept, not kept, an alias of it, and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("anchor", self.layers[1].weight.detach().clone())
        self.register_buffer("scale", 1.0 / self.layers[2].weight.detach().norm(), persistent=False)
        self.copied = self.layers[0].weight.detach().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(x, self.copied)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(functional.linear(x, self.anchor) * self.scale)

    def _apply(self, function, recurse=True):  # type: ignore[no-untyped-def]
        self.copied = function(self.copied)
        return super()._apply(function, recurse)


def anchored() -> nn.Module:
    return Anchored().double()
