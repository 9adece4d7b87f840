"""Random models by number, their rows, and the documents that train them: all follow from the number alone.

`model_7` and `data_7` are functions of this module, for documents to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn

from tests.integration.training.compared import ComparedTraining
from tests.integration.training.random_models.blocks import BLOCKS, STEPS, WIDTH, WORDS, Residual

CLASSES = 7
_LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {"devices": 1},
    *({"devices": devices, "schedule": name} for devices in (2, 3) for name in ("1f1b", "gpipe", "zb-h1", "zb-v")),
    {"devices": 2, "schedule": "chimera"},
    {"devices": 2, "schedule": "interleaved"},
    {"devices": 2, "schedule": "1f1b", "recompute": True},
    {"devices": 1, "replicas": 2},
    {"devices": 1, "replicas": 2, "sync": {"way": "ring"}},
    {"devices": 1, "replicas": 3},
)
_IN_PLACE = ("plain", "attention", "frozen", "anchored")  # they end with what needs its result for no gradient
_EPS = 1e-3  # a gradient that is 0 but for rounding must not become a step, as of a bias before batch norm
_OPTIMIZERS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("sgd", {"lr": 0.05}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.2, "eps": _EPS}),
    ("adam", {"lr": 0.01, "eps": _EPS}),
    ("adagrad", {"lr": 0.01, "eps": _EPS}),
)
_CLASSES = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


class Words(nn.Module):
    """Embeddings of words, by one of torch's layers."""

    def __init__(self, way: str, *, sparse: bool) -> None:
        super().__init__()
        self.way = way
        self.words = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, mode="mean", sparse=sparse) if way == "bag" else None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        return hidden if self.bag is None else hidden + self.bag(words).unsqueeze(1)


class RandomModel(nn.Module):
    """A stem, blocks, and a head that may share the weight of the stem."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, *, pools: bool) -> None:
        super().__init__()
        self.stem, self.blocks, self.head, self.pools = stem, nn.ModuleList(blocks), head, pools

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(1) if self.pools else hidden)


def random_training(number: int) -> ComparedTraining:
    """The training of a number."""
    random = Random(f"document {number}")
    layout = random.choice(_LAYOUTS)
    name, options = random.choice(_OPTIMIZERS)
    microbatches = random.choice((1, 2, 3)) if "schedule" not in layout else random.choice((2, 4))
    parts = microbatches * layout.get("replicas", 1)
    settings = {
        "model": f"{__name__}:model_{number}",
        "data": f"{__name__}:data_{number}",
        "loss": "cross_entropy",
        "epochs": 1,
        "batch": parts * random.choice((2, 3)) + random.choice((0, 1)),
        "microbatches": microbatches,
        "clip": random.choice((None, None, 0.5)),
        "optimizer": {"name": name, **options},
        **layout,
    }
    settings["seed"] = 0
    return ComparedTraining(f"model {number} ({', '.join(_blocks(number))})", settings, _CLASSES[name], options)


def made(number: int) -> nn.Module:
    """The model of a number."""
    random = Random(f"model {number}")
    torch.manual_seed(number)
    by_words, tied, pools = random.random() < 0.5, random.random() < 0.3, random.random() < 0.5
    stem: nn.Module = nn.Linear(3, WIDTH)
    if by_words:
        stem = Words(random.choice(("table", "bag")), sparse=random.random() < 0.5)
    blocks = []
    for name in _blocks(number):
        block = BLOCKS[name](random)
        in_place = name in _IN_PLACE and random.random() < 0.3
        blocks.append(Residual(block, in_place=in_place) if random.random() < 0.6 else block)
    head = nn.Linear(WIDTH, WORDS if by_words else CLASSES)
    if by_words and tied:
        head.weight = stem.words.weight
    module = RandomModel(stem, blocks, head, pools=pools)
    return module.double() if not any(value.is_complex() for value in module.parameters()) else _double(module)


def _double(module: nn.Module) -> nn.Module:
    """In double precision; torch's `double` makes complex weights real."""
    return module._apply(lambda value: value.double() if value.is_floating_point() else value)


def rows(number: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Rows for three updates, of which the last is smaller, and a few to test."""
    random, generator = Random(f"model {number}"), torch.Generator().manual_seed(number)
    by_words, _, pools = random.random() < 0.5, random.random() < 0.3, random.random() < 0.5
    settings = random_training(number).settings
    parts = settings["microbatches"] * settings.get("replicas", 1)
    count = 2 * settings["batch"] + parts + Random(f"rows {number}").randrange(settings["batch"] - parts + 1)
    shape = (count,) if pools else (count, STEPS)
    classes = torch.randint(0, WORDS if by_words else CLASSES, shape, generator=generator)
    words = torch.randint(0, WORDS, (count, STEPS), generator=generator)
    values = torch.randn(count, STEPS, 3, generator=generator, dtype=torch.float64)
    inputs = words if by_words else values
    return {"train": (inputs, classes), "test": (inputs[:3], classes[:3])}


def _blocks(number: int) -> list[str]:
    random = Random(f"blocks {number}")
    return [random.choice(list(BLOCKS)) for _ in range(random.randint(3, 6))]


def __getattr__(name: str) -> Callable[[], Any]:
    kind, _, number = name.partition("_")
    if kind not in ("model", "data") or not number.isdigit():
        raise AttributeError(name)
    return partial(made if kind == "model" else rows, int(number))
