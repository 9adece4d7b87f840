"""Tables: a CSV file with a header and numbers, one row per sample."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jellybean.documents.training.data import CsvSpec
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.quantities import decimal_number, did_you_mean
from jellybean.training.errors import TrainingError
from jellybean.training.samples import Samples
from jellybean_agent import describe_error

_LARGEST = torch.finfo(torch.float32).max
_CLASS_DIGITS = 18  # every number of so many digits is below 2^63


@dataclass(frozen=True)
class Table:
    """`samples`: inputs of shape (rows, columns); targets: class numbers, or of shape (rows, 1). `labels`: of texts."""

    samples: Samples
    labels: tuple[str, ...] = ()


def read_csv(spec: CsvSpec, directory: Path, *, classes: bool) -> Table:
    """Read a file. TrainingError names the line that cannot be used.

    `classes`: the target is a class, a whole number from 0 or a text; otherwise a number.
    """
    path = directory / spec.csv
    with _opened(path) as lines:
        header = [name.strip() for name in next(lines, [])]
        target, inputs = _columns(spec, header, path)
        values, targets, numbers = array("f"), list[str](), array("q")
        for cells in lines:
            if not cells:
                continue  # csv gives an empty list for an empty line
            where = f"{path}:{lines.line_num}"
            if len(cells) != len(header):
                raise TrainingError(f"{where}: it has {len(cells)} cells, and the header {len(header)}")
            values.extend(_number(cells[place], header[place], where) for place in inputs)
            targets.append(cells[target].strip())
            numbers.append(lines.line_num)
            if not targets[-1]:
                raise TrainingError(f"{where}: {spec.target} is empty")
            if not classes:
                _number(targets[-1], spec.target, where)
    if len(targets) < 2:
        raise TrainingError(f"{path}: it has {len(targets)} rows below the header; at least 2 are needed")
    rows = torch.from_numpy(np.frombuffer(values, np.float32).reshape(len(targets), len(inputs)).copy())
    if classes:
        _check_class_numbers(targets, numbers, path, spec.target)
    values, labels = _classes(targets) if classes else (torch.tensor([[float(text)] for text in targets]), ())
    return Table(Samples(CallArguments.of([rows]), CallArguments.of([values])), labels)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield csv.reader(stream, strict=True)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TrainingError(f"{path} cannot be read as CSV: {describe_error(error)}") from error


def _columns(spec: CsvSpec, header: Sequence[str], path: Path) -> tuple[int, list[int]]:
    """Places of the target and of the inputs."""
    if len(header) == 1 and any(sign in header[0] for sign in ";\t"):
        raise TrainingError(f"{path}:1: the header {header[0]!r} is one column: separate cells by commas")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise TrainingError(f"{path}:1: the header has the column {twice!r} twice")
    for name in (spec.target, *(spec.columns or ())):
        if name not in header:
            known = did_you_mean(name, header) or f"it has {', '.join(header[:8]) or 'nothing'}"
            raise TrainingError(f"{path}:1: the header has no column {name!r}; {known}")
    names = spec.columns or [name for name in header if name != spec.target]
    if not names or spec.target in names:
        raise TrainingError(f"{path}: no column is left for the inputs beside {spec.target!r}")
    return header.index(spec.target), [header.index(name) for name in names]


def _number(text: str, column: str, where: str) -> float:
    try:
        number = decimal_number(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        what = "is empty" if not text.strip() else f"is {text!r}, not a finite number"
        raise TrainingError(f"{where}: {column} {what}: fill or leave out such rows, or name `columns` of numbers")
    if abs(number) > _LARGEST:
        raise TrainingError(
            f"{where}: {column} is {text.strip()!r}, and 32-bit numbers end at {_LARGEST:.4g}: divide the column by a "
            "constant"
        )
    return number


def _are_class_numbers(texts: Sequence[str]) -> bool:
    return all(text.isascii() and text.isdecimal() for text in texts)


def _check_class_numbers(texts: Sequence[str], numbers: Sequence[int], path: Path, column: str) -> None:
    """TrainingError if class numbers are too large for 64 bits. `numbers`: lines of the texts."""
    for text, number in zip(texts, numbers, strict=True) if _are_class_numbers(texts) else ():
        if len(text.lstrip("0")) > _CLASS_DIGITS:
            shown = text if len(text) <= 2 * _CLASS_DIGITS else f"{text[:_CLASS_DIGITS]}..."
            raise TrainingError(
                f"{path}:{number}: {column} is {shown}, and a class is a number from 0 of at most {_CLASS_DIGITS} "
                "digits: number the classes from 0, or put a letter before each, which makes them labels"
            )


def _classes(texts: Sequence[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Class numbers: the texts themselves if all are whole numbers from 0, otherwise places among the sorted texts."""
    if _are_class_numbers(texts):
        return torch.tensor([int(text) for text in texts]), ()
    labels = sorted(set(texts))
    places = {label: place for place, label in enumerate(labels)}
    return torch.tensor([places[text] for text in texts]), tuple(labels)
