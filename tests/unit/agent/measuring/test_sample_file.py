"""Sample inputs survive the way to a worker, byte by byte, and equal ones are sent once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jellybean_agent import InvalidInputError, sample_file
from jellybean_agent.measuring.sample_file import read_sample_file


def test_tensors_and_children_of_gathers_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(1, 3)).astype(np.float32), np.arange(4, dtype=np.int64), np.array([["a", "bc"]])]
    sample = [(tensors[0], (tensors[1], tensors[1] + 1)), (tensors[0] * 2, ()), (tensors[2], (tensors[0],))]
    path = tmp_path / "sample"
    path.write_bytes(sample_file(sample))
    found = read_sample_file(path)
    assert [[type(value) for value in inputs] for inputs in found] == [
        [type(value) for value in inputs] for inputs in sample
    ]
    for inputs, wanted in zip(found, sample, strict=True):
        for value, other in zip(inputs, wanted, strict=True):
            pairs = zip(value, other, strict=True) if isinstance(value, tuple) else [(value, other)]
            for one, two in pairs:
                assert one.dtype == two.dtype and np.array_equal(one, two)


def test_equal_samples_are_equal_files() -> None:
    first, again = ([(np.arange(3, dtype=np.float32),)] for _ in range(2))
    assert sample_file(first) == sample_file(again) != sample_file([(np.arange(4, dtype=np.float32),)])


@pytest.mark.parametrize("content", [b"", b"[[null]]\n", b"[[null]]\nabc", b"7\n", b"{"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sample"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_sample_file(path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    """An array of objects would run code when it is read."""
    path = tmp_path / "sample"
    with path.open("wb") as file:
        file.write(b"[[null]]\n")
        np.lib.format.write_array(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInputError):
        read_sample_file(path)
