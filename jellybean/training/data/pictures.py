"""Labelled folders of pictures: FOLDER/LABEL/PICTURE.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from jellybean.documents.training.data import FolderSpec
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.errors import TrainingError
from jellybean.training.samples import Samples
from jellybean_agent import describe_error


def read_pictures(spec: FolderSpec, directory: Path) -> tuple[Samples, tuple[str, ...]]:
    """All pictures, scaled to one size, with values of 0 to 1; and the labels by class number."""
    from PIL import Image

    root = directory / spec.folder
    folders = [path for path in _visible(root) if path.is_dir()] if root.is_dir() else []
    labels = [path.name for path in folders]
    files = [(path, label) for label, name in enumerate(labels) for path in _visible(root / name)]
    if len(labels) < 2 or len(files) < 2:
        raise TrainingError(f"{root}: {len(files)} pictures of {len(labels)} labels; write FOLDER/LABEL/PICTURE.png")
    pictures = []
    for path, _ in files:
        try:
            with Image.open(path) as picture:
                small = picture.convert("L" if spec.channels == 1 else "RGB").resize((spec.size, spec.size))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{path} is no picture: {describe_error(error)}") from error
        pictures.append(np.asarray(small, np.float32).reshape(spec.size, spec.size, spec.channels) / 255)
    inputs = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    targets = torch.tensor([label for _, label in files])
    return Samples(CallArguments.of([inputs]), CallArguments.of([targets])), tuple(labels)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
