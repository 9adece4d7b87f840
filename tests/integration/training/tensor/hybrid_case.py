"""One update of a published network as a CNN hybrid, whose bytes are counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents import OptimizerSpec, SyncSpec, TrainingDocument
from jellybean.documents.training.tensor import TensorSpec
from jellybean.training import IterationFeed, Rank, ReadPlan, set_up_run

WORKERS = 4
BATCHES = {"alexnet": 32, "vgg16": 64}  # of each worker, as published
PIXELS = {"alexnet": 64, "vgg16": 32}  # the bytes do not depend on the pictures' size: both pool to one size


def alexnet() -> nn.Module:
    """As in "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014)."""
    convolutions = [
        *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
    ]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *_classifier(256 * 6 * 6))


def vgg16() -> nn.Module:
    """Configuration D of Simonyan and Zisserman (2015)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *_classifier(512 * 7 * 7))


def _classifier(inputs: int) -> list[nn.Module]:
    sizes = [nn.Dropout(), nn.Linear(inputs, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    return [*sizes, nn.Linear(4096, 1000)]


def _pictures(name: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows = WORKERS * BATCHES[name]
    pictures = torch.randn(rows, 3, PIXELS[name], PIXELS[name], generator=torch.Generator().manual_seed(0))
    classes = torch.arange(rows) % 1000
    return {"train": (pictures, classes), "test": (pictures[:WORKERS], classes[:WORKERS])}


def alexnet_pictures() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return _pictures("alexnet")


def vgg16_pictures() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return _pictures("vgg16")


@dataclass(frozen=True)
class OneHybridUpdate:
    """Returns the bytes that this rank sent for gradients and for split layers, and the split layers."""

    network: str

    def __call__(self, number: int) -> dict[str, Any]:
        spec = TensorSpec(ways=WORKERS, conv="data", linear="tensor")
        document = TrainingDocument(
            kind="Training",
            model=f"{__name__}:{self.network}",
            data=f"{__name__}:{self.network}_pictures",
            epochs=1,
            batch=WORKERS * BATCHES[self.network],
            optimizer=OptimizerSpec(name="sgd", lr=0.001),
            tensor=spec,
            sync=SyncSpec(way="ring"),
            schedule="1f1b",
        )
        torch.manual_seed(0)
        rank = Rank(number, 1, torch.device("cpu"), tensor=WORKERS, by_rows=True)
        run = set_up_run(document, Path(), rank)
        reader = run.data.train.read(ReadPlan(run.sampler, replica=rank.worker))
        run.interpreter.run(IterationFeed(reader, 0, rank.device, 0, rank.worker, 0))
        run.transport.close()
        return {
            "gradients": run.updates.sent_bytes,
            "layers": run.split.weights.group.sent_bytes,
            "split": sorted(run.split.layers),
        }
