"""Labelled folders of pictures: FOLDER/LABEL/PICTURE.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from jellybean.documents.training.data import FolderSpec
from jellybean.errors import InputError
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.errors import TrainingError
from jellybean.training.samples import Samples

_MAX_BYTES = 2**29  # of a picture's pixels before it is scaled


def read_pictures(spec: FolderSpec, directory: Path) -> tuple[Samples, tuple[str, ...]]:
    """All pictures, scaled to one size, with values of 0 to 1; and the labels by class number."""
    root = directory / spec.folder
    folders = [path for path in _visible(root) if path.is_dir()] if root.is_dir() else []
    labels = [path.name for path in folders]
    files = [(path, label) for label, name in enumerate(labels) for path in _visible(root / name)]
    if len(labels) < 2 or len(files) < 2:
        raise TrainingError(f"{root}: {len(files)} pictures of {len(labels)} labels; write FOLDER/LABEL/PICTURE.png")
    pictures = [_scaled(path, spec) for path, _ in files]
    inputs = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    targets = torch.tensor([label for _, label in files])
    return Samples(CallArguments.of([inputs]), CallArguments.of([targets])), tuple(labels)


def _scaled(path: Path, spec: FolderSpec) -> npt.NDArray[np.float32]:
    """One picture in the size and channels of the document, with values of 0 to 1."""
    from PIL import Image

    from jellybean.pictures import read_picture

    try:
        pixels = read_picture(path, _MAX_BYTES).pixels
    except (InputError, OSError) as error:
        raise TrainingError(f"{path} is no picture that can be trained on: {error}") from error
    whole = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 0
    if whole not in (2**8 - 1, 2**16 - 1):
        raise TrainingError(f"{path} has pixels of {pixels.dtype.name}, of which white is unknown: save it as PNG")
    picture = Image.fromarray(pixels)
    if pixels.dtype == np.uint8:
        picture = picture.convert("L" if spec.channels == 1 else "RGB")
    else:
        picture = picture.convert("F")  # with 16 bits, Pillow reads grey pictures alone
    small = np.asarray(picture.resize((spec.size, spec.size)), np.float32)
    channels = small.reshape(spec.size, spec.size, -1) / np.float32(whole)
    return np.broadcast_to(channels, (spec.size, spec.size, spec.channels))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
