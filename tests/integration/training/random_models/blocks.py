"""Blocks of the random models: each takes and gives (rows, steps, WIDTH), and is made of torch's common modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from random import Random

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

STEPS, WIDTH, WORDS = 5, 8, 24


class Residual(nn.Module):
    """Adds what a layer gives, in place or not."""

    def __init__(self, layer: nn.Module, *, in_place: bool = False) -> None:
        super().__init__()
        self.layer, self.in_place = layer, in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.layer(x)
        return added.add_(x) if self.in_place else x + added


class Transposed(nn.Module):
    """A layer that takes the channels before the steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    """Attention of torch's layer, by its function, or by einsum."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.heads = way, 2
        if way == "layer":
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        else:
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "layer":
            return self.attention(x, x, x, need_weights=False)[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.way == "function":
            pairs = (part.transpose(1, 2) for part in (q, k, v))
            mixed = functional.scaled_dot_product_attention(*pairs, is_causal=True).transpose(1, 2)
        else:
            scores = torch.einsum("nqhc,nkhc->nhqk", q, k) / (WIDTH // self.heads) ** 0.5
            mixed = torch.einsum("nhqk,nkhc->nqhc", scores.softmax(-1), v)
        return self.out(mixed.flatten(2))


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, and its last state added to each."""

    def __init__(self, made: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = made(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return outputs + 0.5 * last[-1].unsqueeze(1)


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


class Autocast(nn.Module):
    """A region in which autocast is off, or on."""

    def __init__(self, layer: nn.Module, *, enabled: bool) -> None:
        super().__init__()
        self.layer, self.enabled = layer, enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            return self.layer(x)


class Branch(nn.Module):
    """A branch on the data, by value or by rows, or on the mode."""

    def __init__(self, on: str) -> None:
        super().__init__()
        self.on, self.one, self.other = on, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on == "rows":
            return torch.where(x.sum((1, 2), keepdim=True) > 0, self.one(x), self.other(x))
        if self.on == "mode":
            return self.one(x) if self.training else self.other(x)
        return self.one(x) if x.sum() > 0 else self.other(x)


class Spectrum(nn.Module):
    """Complex weights on a Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bent = torch.fft.rfft(x).conj() * self.weight
        return self.mix(torch.fft.irfft(bent, WIDTH))


class Anchored(nn.Module):
    """A buffer that is a copy of a weight, and a weight under `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dead, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.register_buffer("anchor", self.layer.weight.detach().clone())
        self.register_buffer("scale", torch.rand(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + functional.linear(x, self.anchor) * self.scale + 0.1 * self.dead(x).detach()


class TiedPair(nn.Module):
    """Two layers with one weight, of which the second reads it transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.middle, self.outer = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.middle(torch.tanh(self.inner(x))))) + x @ self.inner.weight


def _halved(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient * 0.5


class Hooked(nn.Module):
    """A layer with hooks: on its input, its output, a weight, and the gradient of its output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        if kind == "input":
            self.layer.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,))
        elif kind == "output":
            self.layer.register_forward_hook(lambda _, args, output: output.tanh())
        elif kind == "weight":
            self.layer.weight.register_hook(lambda gradient: gradient * 0.5)
        else:
            self.layer.register_full_backward_hook(lambda _, given, coming: tuple(map(_halved, given)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _normalised(random: Random) -> nn.Module:
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.RMSNorm(WIDTH),
        lambda: Transposed(nn.BatchNorm1d(WIDTH)),
        lambda: Transposed(nn.GroupNorm(2, WIDTH)),
        lambda: Transposed(nn.InstanceNorm1d(WIDTH, affine=True)),
        lambda: nn.BatchNorm1d(STEPS, momentum=None),
    ]
    return random.choice(makers)()


def _weights_computed(random: Random) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    way = random.choice(("spectral", "spectral old", "weight", "weight old", "orthogonal", "pruned", "pruned bias"))
    if way == "spectral":
        return parametrizations.spectral_norm(layer)
    if way == "spectral old":
        return spectral_norm(layer)
    if way == "weight":
        return parametrizations.weight_norm(layer)
    if way == "weight old":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and many models have it
            return weight_norm(layer)
    if way == "orthogonal":
        return parametrizations.orthogonal(layer)
    return prune.random_unstructured(layer, "bias" if way == "pruned bias" else "weight", amount=0.4)


def _convolution(random: Random) -> nn.Module:
    depth = random.choice((1, WIDTH))
    layers = [nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=depth), nn.ReLU(inplace=random.random() < 0.5)]
    return Transposed(nn.Sequential(*layers, nn.Conv1d(WIDTH, WIDTH, 1)))


def _plain(random: Random) -> nn.Module:
    act = random.choice((nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(inplace=True), nn.PReLU(), nn.Softplus()))
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), act, nn.Dropout(0.0), nn.Linear(2 * WIDTH, WIDTH))


def _encoder(random: Random) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True, norm_first=random.random() < 0.5)


def _frozen(random: Random) -> nn.Module:
    layers = _plain(random)
    layers[0].requires_grad_(False)
    return layers


HOOKS = ("input", "output", "weight", "gradient")

BLOCKS: dict[str, Callable[[Random], nn.Module]] = {
    "plain": _plain,
    "attention": lambda random: Attention(random.choice(("layer", "function", "einsum"))),
    "encoder": _encoder,
    "recurrent": lambda random: Recurrent(random.choice((nn.LSTM, nn.GRU, nn.RNN))),
    "convolution": _convolution,
    "normalised": _normalised,
    "weights computed": _weights_computed,
    "checkpointed": lambda random: Checkpointed(_plain(random)),
    "autocast": lambda random: Autocast(_plain(random), enabled=random.random() < 0.5),
    "branch": lambda random: Branch(random.choice(("rows", "mode", "values"))),
    "spectrum": lambda _: Spectrum(),
    "anchored": lambda _: Anchored(),
    "tied": lambda _: TiedPair(),
    "hooked": lambda random: Hooked(random.choice(HOOKS)),
    "frozen": _frozen,
    "cell": lambda _: Transposed(nn.Sequential(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1), nn.Tanh())),
}
