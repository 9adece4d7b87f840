"""Strips of handwritten digits: what a cheap camera would see of scikit-learn's scans.

A strip is a grey picture of six slots side by side, 16 x 96 pixels. Most slots hold a scan that was turned, scaled,
shifted, blurred, faded and covered with noise; the others hold noise, specks or the faint rest of a digit.
Scans are split by their order in the data set, which is by writer, so that no scan is in two splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

SLOTS = 6
SIDE = 16  # pixels of a slot
SPLITS = {"train": (0, 1000), "tune": (1000, 1250), "heldout": (1250, 1797)}
EMPTY_STRIPS = 0.03  # share of strips without any digit
NO_DIGITS = -1  # the number of a strip without digits

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scans:
    """Scans of one split: ink 0..1, [n, 8, 8], and which digit each is."""

    ink: Floats
    digits: Ints


def load_scans(split: str) -> Scans:
    """The scans of a split, in the data set's order."""
    first, last = SPLITS[split]
    data = load_digits()
    ink = data.images[first:last].astype(np.float32) / 16.0
    return Scans(ink, data.target[first:last].astype(np.int64))


def ink_of(scans: Floats, rng: np.random.Generator) -> Floats:
    """Scans as seen from a moving camera: turned, scaled and shifted into [n, 16, 16], ink 0..1."""
    n = len(scans)
    turn = rng.uniform(-0.18, 0.18, n)
    scale = rng.uniform(0.9, 1.15, (n, 2))
    shift = rng.uniform(-1.2, 1.2, (n, 2))
    shear = rng.uniform(-0.1, 0.1, n)
    axis = np.arange(SIDE) - (SIDE - 1) / 2
    y, x = np.meshgrid(axis, axis, indexing="ij")
    y = y[None] - shift[:, :1, None]
    x = x[None] - shift[:, 1:, None] + shear[:, None, None] * y
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    row = (cos * y - sin * x) * scale[:, :1, None] / 2 + 3.5
    column = (sin * y + cos * x) * scale[:, 1:, None] / 2 + 3.5
    return _bilinear(scans, row, column)


def _bilinear(images: Floats, row: npt.NDArray[np.float64], column: npt.NDArray[np.float64]) -> Floats:
    """Values of images [n, 8, 8] between their pixels; 0 outside."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    row, column = np.clip(row + 1, 0, 8.999), np.clip(column + 1, 0, 8.999)
    top, left = row.astype(int), column.astype(int)
    down, right = row - top, column - left
    which = np.arange(len(images))[:, None, None]
    upper = padded[which, top, left] * (1 - right) + padded[which, top, left + 1] * right
    lower = padded[which, top + 1, left] * (1 - right) + padded[which, top + 1, left + 1] * right
    return (upper * (1 - down) + lower * down).astype(np.float32)


def photograph(ink: Floats, rng: np.random.Generator) -> Bytes:
    """Ink [n, h, w] as bytes (0 black, 255 full ink): uneven light, faded ink, blur, noise and specks."""
    n, _, width = ink.shape
    contrast = rng.uniform(0.40, 0.85, (n, 1, 1))
    light = rng.uniform(0.05, 0.25, (n, 1, 1)) + rng.uniform(-0.12, 0.12, (n, 1, 1)) * np.linspace(-1, 1, width)
    sigma = rng.uniform(0.03, 0.11, (n, 1, 1))
    seen = light + contrast * _blurred(ink, rng.uniform(0.0, 0.6, (n, 1, 1)))
    seen = seen + sigma * rng.standard_normal(ink.shape)
    specks = rng.random(ink.shape) < rng.uniform(0.0, 0.015, (n, 1, 1))
    seen = np.where(specks, rng.uniform(0.2, 1.0, ink.shape), seen)
    return np.rint(np.clip(seen, 0.0, 1.0) * 255).astype(np.uint8)


def _blurred(ink: Floats, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    padded = np.pad(ink, ((0, 0), (1, 1), (1, 1)), mode="edge")
    near = (padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]) / 4
    return (1 - weight) * ink + weight * near


def crops(scans: Scans, views: int, rng: np.random.Generator) -> tuple[Bytes, Ints]:
    """`views` different photographs of every scan: [views x n, 16, 16] and their digits."""
    ink = np.concatenate([ink_of(scans.ink, rng) for _ in range(views)])
    return photograph(ink, rng), np.tile(scans.digits, views)


def empty_ink(n: int, scans: Scans, rng: np.random.Generator) -> Floats:
    """Slots without a digit: nothing at all, or the faint rest of one."""
    rest = ink_of(scans.ink[rng.integers(len(scans.ink), size=n)], rng)
    return (rest * rng.uniform(0.0, 0.12, (n, 1, 1))).astype(np.float32)


def strips(scans: Scans, count: int, rng: np.random.Generator) -> tuple[Bytes, Ints, npt.NDArray[np.bool_]]:
    """`count` strips [count, 16, 96], their numbers, and which slots hold a digit [count, 6]."""
    held = np.zeros((count, SLOTS), np.bool_)
    for index in range(count):
        digits = 0 if rng.random() < EMPTY_STRIPS else int(rng.integers(2, SLOTS + 1))
        held[index, rng.permutation(SLOTS)[:digits]] = True
    rounds = int(np.ceil(held.sum() / len(scans.ink)))
    chosen = np.concatenate([rng.permutation(len(scans.ink)) for _ in range(rounds)])[: held.sum()]
    ink = np.zeros((count, SLOTS, SIDE, SIDE), np.float32)
    ink[held] = ink_of(scans.ink[chosen], rng)
    ink[~held] = empty_ink(int((~held).sum()), scans, rng)
    digits_of = np.full((count, SLOTS), -1, np.int64)
    digits_of[held] = scans.digits[chosen]
    pictures = ink.transpose(0, 2, 1, 3).reshape(count, SIDE, SLOTS * SIDE)
    return photograph(pictures, rng), np.array([number_of(row) for row in digits_of], np.int64), held


def number_of(slots: npt.NDArray[np.int64]) -> int:
    """The number that the digits of a strip write, left to right; slots below 0 are empty."""
    digits = [int(digit) for digit in slots if digit >= 0]
    return int("".join(map(str, digits))) if digits else NO_DIGITS
