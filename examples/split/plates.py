"""Door plates: handwritten digits on plates before photographs, as a camera in the street would see them.

Every picture, 64 x 64 in colour, is a piece of one of scikit-learn's two sample photographs with a plate on it that
bears one of its handwritten digits, light on dark or dark on light, turned, scaled, shifted and noisy. Scans are split
by their order in the data set, which is by writer, so that no scan is in two splits; backgrounds come from the left of
the photographs to train, from the right to test.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits, load_sample_images

SIDE = 64
SPLITS = {"train": (0, 1250), "heldout": (1250, 1797)}
LEFT = 440  # columns of the photographs that are for training

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def plates(split: str, count: int, rng: np.random.Generator) -> tuple[Bytes, Ints]:
    """Pictures [count, 3, 64, 64] and the digits on them."""
    first, last = SPLITS[split]
    data = load_digits()
    ink = data.images[first:last].astype(np.float32) / 16.0
    digits = data.target[first:last].astype(np.int64)
    photographs = [photograph.astype(np.float32) for photograph in load_sample_images().images]
    chosen = rng.integers(len(ink), size=count)
    pictures = np.empty((count, 3, SIDE, SIDE), np.uint8)
    for place, scan in enumerate(chosen):
        background = _background(photographs[rng.integers(len(photographs))], split, rng)
        plate, mask = _turned(np.stack([np.ones((8, 8), np.float32), ink[scan]]), rng)
        light, dark = rng.uniform(130, 255, size=(3, 1, 1)), rng.uniform(0, 110, size=(3, 1, 1))
        paint, enamel = (light, dark) if rng.random() < 0.5 else (dark, light)
        picture = background * (1 - plate) + enamel * plate
        picture = picture * (1 - mask) + paint * mask + rng.normal(0, 8, size=background.shape)
        pictures[place] = np.clip(picture, 0, 255).astype(np.uint8)
    return pictures, digits[chosen]


def _background(photograph: Floats, split: str, rng: np.random.Generator) -> Floats:
    """A piece of a photograph, twice enlarged, [3, 64, 64]."""
    half = SIDE // 2
    height, width, _ = photograph.shape
    left, right = (0, LEFT - half) if split == "train" else (LEFT, width - half)
    row, column = rng.integers(height - half), rng.integers(left, right)
    piece = photograph[row : row + half, column : column + half].transpose(2, 0, 1)
    return np.repeat(np.repeat(piece, 2, axis=1), 2, axis=2)


def _turned(ink: Floats, rng: np.random.Generator) -> Floats:
    """Layers [n, 8, 8] turned, scaled and shifted into a picture alike, by linear interpolation, [n, 64, 64]."""
    angle, scale = rng.uniform(-0.2, 0.2), rng.uniform(4.0, 6.5)  # pixels of the picture for one of the scan
    shift = rng.uniform(-6, 6, size=2)
    at = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    y, x = np.meshgrid(at - shift[0], at - shift[1], indexing="ij")
    rows = (np.cos(angle) * y - np.sin(angle) * x) / scale + 3.5
    columns = (np.sin(angle) * y + np.cos(angle) * x) / scale + 3.5
    padded = np.pad(ink, ((0, 0), (2, 2), (2, 2)))
    rows, columns = np.clip(rows + 2, 0, 10.999), np.clip(columns + 2, 0, 10.999)
    r, c = rows.astype(int), columns.astype(int)
    dr, dc = rows - r, columns - c
    top = padded[:, r, c] * (1 - dc) + padded[:, r, c + 1] * dc
    bottom = padded[:, r + 1, c] * (1 - dc) + padded[:, r + 1, c + 1] * dc
    return (top * (1 - dr) + bottom * dr).astype(np.float32)
