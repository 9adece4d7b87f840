"""Rows of data for the published models: tokens, pictures, sounds, of sizes that leave uneven micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WORDS, LENGTH, CLASSES = 61, 8, 5
FIRST_WORD = 4  # below it are the words that models keep for padding, the start and the end
IGNORED = -100
BATCH, ROWS, TEST_ROWS = 5, 14, 3  # two updates of 5 rows, and one of 4
DTYPE = torch.float64
Rows = dict[str, Any]


def parts_of(rows: Callable[[int, torch.Generator], Any]) -> Callable[[], Rows]:
    """The data of a document, of a function (number of rows, generator) -> rows."""

    def parts() -> Rows:
        return {
            name: rows(count, torch.Generator().manual_seed(seed))
            for seed, (name, count) in enumerate((("train", ROWS), ("test", TEST_ROWS)))
        }

    return parts


def _words(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(words, which of them are no padding): rows of different lengths."""
    words = torch.randint(FIRST_WORD, WORDS, (count, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    return words, torch.arange(LENGTH) < lengths


def classified_words(count: int, generator: torch.Generator) -> Rows:
    """Padded rows with one class each."""
    words, valid = _words(count, generator)
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    return {"input_ids": words, "attention_mask": valid.long(), "labels": classes}


def tagged_words(count: int, generator: torch.Generator) -> Rows:
    """Padded rows with a class for each word."""
    words, valid = _words(count, generator)
    classes = torch.randint(0, CLASSES, (count, LENGTH), generator=generator)
    return {"input_ids": words, "attention_mask": valid.long(), "labels": classes.masked_fill(~valid, IGNORED)}


def masked_words(count: int, generator: torch.Generator) -> Rows:
    """Padded rows in which some words are hidden, and are the labels."""
    words, valid = _words(count, generator)
    hidden = (torch.rand(words.shape, generator=generator) < 0.4) & valid
    hidden[:, 0] = True
    labels = words.masked_fill(~hidden, IGNORED)
    return {"input_ids": words.masked_fill(hidden, 3), "attention_mask": valid.long(), "labels": labels}


def continued_words(count: int, generator: torch.Generator) -> Rows:
    """Padded rows of a language model: each word is the label of the one before."""
    words, valid = _words(count, generator)
    labels = words.masked_fill(~valid, IGNORED)
    return {"input_ids": words, "attention_mask": valid.long(), "labels": labels}


def unpadded_words(count: int, generator: torch.Generator) -> Rows:
    """Rows of one length without a mask."""
    words, _ = _words(count, generator)
    return {"input_ids": words, "labels": words}


def answered_words(count: int, generator: torch.Generator) -> Rows:
    """Padded rows with the first and the last word of an answer."""
    words, valid = _words(count, generator)
    first = torch.randint(0, 2, (count,), generator=generator)
    places = {"start_positions": first, "end_positions": first + 1}
    return {"input_ids": words, "attention_mask": valid.long(), **places}


def with_targets(rows: Callable[[int, torch.Generator], Rows]) -> Callable[[int, torch.Generator], Any]:
    """The labels beside the inputs, for a loss outside of the model."""

    def separate(count: int, generator: torch.Generator) -> Any:
        inputs = rows(count, generator)
        return inputs, inputs.pop("labels")

    return separate


def captioned_pictures(count: int, generator: torch.Generator) -> Rows:
    """Pictures with a row of words each, of which a batch is compared with each other."""
    words, valid = _words(count, generator)
    words[:, -1] = WORDS - 1  # the end of a text is where its largest word is
    pictures = torch.randn(count, 3, 16, 16, generator=generator, dtype=DTYPE)
    return {"input_ids": words, "attention_mask": valid.long(), "pixel_values": pictures, "return_loss": True}


def pictures(size: int, *, named: bool = False) -> Callable[[int, torch.Generator], Any]:
    """Pictures with classes. `named`: as the arguments of a model that computes its loss."""

    def rows(count: int, generator: torch.Generator) -> Any:
        values = torch.randn(count, 3, size, size, generator=generator, dtype=DTYPE)
        classes = torch.randint(0, CLASSES, (count,), generator=generator)
        return {"pixel_values": values, "labels": classes} if named else (values, classes)

    return rows


def segmented_pictures(size: int, *, named: bool = False) -> Callable[[int, torch.Generator], Any]:
    """Pictures with a class for each of their points."""

    def rows(count: int, generator: torch.Generator) -> Any:
        values = torch.randn(count, 3, size, size, generator=generator, dtype=DTYPE)
        classes = torch.randint(0, CLASSES, (count, size, size), generator=generator)
        return {"pixel_values": values, "labels": classes} if named else (values, classes)

    return rows


def boxed_pictures(count: int, generator: torch.Generator) -> Rows:
    """Pictures with two boxes each."""
    values = torch.rand(count, 3, 32, 32, generator=generator, dtype=DTYPE)
    corner = torch.randint(0, 12, (count, 2, 2), generator=generator).to(DTYPE)
    size = torch.randint(8, 18, (count, 2, 2), generator=generator).to(DTYPE)
    classes = torch.randint(1, CLASSES, (count, 2), generator=generator)
    return {"images": values, "boxes": torch.cat([corner, corner + size], dim=2), "classes": classes}


def restored_pictures(count: int, generator: torch.Generator) -> Rows:
    """Pictures that a model restores, with the numbers that decide what is hidden."""
    values = torch.randn(count, 3, 16, 16, generator=generator, dtype=DTYPE)
    return {"pixel_values": values, "noise": torch.rand(count, 4, generator=generator)}


def films(count: int, generator: torch.Generator) -> Any:
    """Short films with classes."""
    values = torch.randn(count, 3, 4, 16, 16, generator=generator, dtype=DTYPE)
    return values, torch.randint(0, CLASSES, (count,), generator=generator)


def sounds(count: int, generator: torch.Generator) -> Rows:
    """Sounds with classes."""
    values = torch.randn(count, 320, generator=generator, dtype=DTYPE)
    return {"input_values": values, "labels": torch.randint(0, CLASSES, (count,), generator=generator)}


def spoken_words(count: int, generator: torch.Generator) -> Rows:
    """Spectra of speech with the words that were said."""
    words, valid = _words(count, generator)
    spectra = torch.randn(count, 8, 2 * LENGTH, generator=generator, dtype=DTYPE)
    return {"input_features": spectra, "labels": words.masked_fill(~valid, IGNORED)}
