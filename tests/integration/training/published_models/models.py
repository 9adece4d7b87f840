"""The published models by name, and the documents that train them.

`NAME_model` and `NAME_data` are functions of this module, for documents to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.integration.training.compared import ComparedTraining
from tests.integration.training.published_models.hugging_face import HUGGING_FACE
from tests.integration.training.published_models.published import Published
from tests.integration.training.published_models.rows import BATCH, IGNORED
from tests.integration.training.published_models.vision import TIMM, TORCHVISION

PUBLISHED: Mapping[str, Published] = {**HUGGING_FACE, **TORCHVISION, **TIMM}
# What no graph can follow on several devices: a loss in forward that decides by values or by the number of rows, loops
# over rows, statistics that activation checkpointing counts twice, and an evaluation that writes into the weights.
REFUSED_IN_STAGES = frozenset({"deberta_v2", "qwen2_moe", "clip", "retinanet", "tv_densenet", "rwkv"})
REFUSED_IN_COPIES = frozenset({"rwkv"})  # it writes down in Python whether its weights are scaled for evaluation
_TWO = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "chimera")
_THREE = ("zb-h1", "1f1b", "gpipe", "zb-v")
_OPTIMIZERS = (
    ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    ("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.2, "eps": 1e-3}),
)
LAYOUTS = ("one", "two", "three", "replicas")


def training_of(name: str, layout: str) -> ComparedTraining:
    """The training of a model by one of LAYOUTS; its schedule and optimizer follow from the model's place."""
    published, number = PUBLISHED[name], list(PUBLISHED).index(name)
    optimizer, made, options = _OPTIMIZERS[number % len(_OPTIMIZERS)]
    layouts = {
        "one": {"devices": 1},
        "two": {"devices": 2, "schedule": _TWO[number % len(_TWO)]},
        "three": {"devices": 3, "schedule": _THREE[number % len(_THREE)]},
        "replicas": {"devices": 1, "replicas": 2},
    }
    settings = {
        "model": f"{__name__}:{name}_model",
        "data": f"{__name__}:{name}_data",
        "loss": published.loss,
        "epochs": 1,
        "batch": BATCH,
        "microbatches": 2 if published.divided and layout != "replicas" else 1,
        "optimizer": {"name": optimizer, **options},
        "seed": 0,
        **layouts[layout],
    }
    return ComparedTraining(name, settings, made, options, _COUNTS[published.counts])


def _labels(arguments: Any, shift: int) -> float:
    return float((arguments["labels"][:, shift:] != IGNORED).sum())


_COUNTS: Mapping[str, Callable[[Any, Any], float] | None] = {
    "rows": None,
    "targets": lambda _, targets: float((targets[0] != IGNORED).sum()),
    "labels": lambda arguments, _: _labels(arguments, 0),
    "shifted labels": lambda arguments, _: _labels(arguments, 1),
}


def __getattr__(name: str) -> Callable[[], Any]:
    model, _, kind = name.rpartition("_")
    if model not in PUBLISHED or kind not in ("model", "data"):
        raise AttributeError(name)
    return getattr(PUBLISHED[model], kind)
