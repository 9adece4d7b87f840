"""Files that people hand over: good, damaged, empty, or not what their names say."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jellybean.errors import JellyBeanError
from jellybean.tensor_files import read_archive, read_archived, read_npy, read_npz


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    objects = np.array([{}], dtype=object)
    np.savez(path, x=np.arange(6).reshape(3, 2), single=np.float32(1), objects=objects)
    return path


def test_whole_arrays_and_rows(archive: Path, tmp_path: Path) -> None:
    assert read_npz(archive, "x").shape == (3, 2)
    assert read_npz(archive, "x[2]").tolist() == [[4, 5]]
    np.save(tmp_path / "x.npy", np.ones((1, 2)))
    assert read_npy(tmp_path / "x.npy").tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ("x[3]", "has no row 3: its 3 rows"),
        ("x[-1]", "with a row number from 0"),
        ("x[1", "with a row number from 0"),
        ("x[1]]", "with a row number from 0"),
        ("x[]", "with a row number from 0"),
        ("", "name an array"),
        ("y", "has no array 'y'; arrays: x, single, objects"),
        ("single", "is a single value"),
        ("single[0]", "is a single value"),
        ("objects", "cannot be read as arrays"),
    ],
)
def test_arrays_that_are_not_there(archive: Path, array: str, reason: str) -> None:
    with pytest.raises(JellyBeanError, match=reason):
        read_npz(archive, array)


def test_damaged_files(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    bad = tmp_path / "bad.npz"
    halves = [whole[: len(whole) // 2], whole[:100] + b"\xff" * 60 + whole[160:], b"", b"PK\x03\x04", b"hello" * 9]
    for content in halves:
        bad.write_bytes(content)
        with pytest.raises(JellyBeanError, match=r"bad\.npz"):
            read_npz(bad, "x")
        with pytest.raises(JellyBeanError, match=r"bad\.npz"):
            read_npy(bad)
    np.savez(bad)
    with pytest.raises(JellyBeanError, match="archive without arrays"):
        read_npz(bad, "x")
    with pytest.raises(JellyBeanError, match=r"archive of arrays; name one: .*#name"):
        read_npy(bad)
    np.save(tmp_path / "x.npy", np.float32(1))
    with pytest.raises(JellyBeanError, match="single value"):
        read_npy(tmp_path / "x.npy")
    with pytest.raises(JellyBeanError, match="has one unnamed array"):
        read_npz(tmp_path / "x.npy", "x")
    with pytest.raises(JellyBeanError, match="file not found"):
        read_npz(tmp_path / "none.npz", "x")
    with pytest.raises(JellyBeanError, match="cannot be read"):
        read_npy(tmp_path)


@pytest.mark.parametrize("behind", ["another array", "a byte", "in an archive"])
def test_what_stands_behind_an_array_is_not_left_out_without_a_word(tmp_path: Path, behind: str) -> None:
    values = np.arange(6).reshape(3, 2)
    np.save(tmp_path / "x.npy", values)
    one = (tmp_path / "x.npy").read_bytes()
    content = one + (b"\n" if behind == "a byte" else one)
    (tmp_path / "x.npy").write_bytes(content)
    reason = f"has {len(content) - len(one)} bytes behind its first array"
    if behind != "in an archive":
        with pytest.raises(JellyBeanError, match=reason):
            read_npy(tmp_path / "x.npy")
        return
    for name in ("x.npy", "x"):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr(name, content)
        for read in (lambda path: read_npz(path, "x"), lambda path: read_archived(path, "x"), read_archive):
            with pytest.raises(JellyBeanError, match=reason):
                read(tmp_path / "x.npz")


def test_an_array_that_does_not_fit_into_memory_is_not_unpacked(tmp_path: Path) -> None:
    """A file of a few bytes may state any size."""
    np.save(tmp_path / "x.npy", np.zeros(4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
        archive.getinfo("x.npy").file_size = 2**50  # which is written when the archive is closed
    for read in (lambda path: read_npz(path, "x"), lambda path: read_npz(path, "x[0]"), read_archive):
        with pytest.raises(JellyBeanError, match=r"x has 1,125,899,906,842,624 bytes unpacked, more than the .* free"):
            read(tmp_path / "x.npz")


def _header_bomb(path: Path, size: int) -> Path:
    """An archive whose array has a header of `size` bytes, which take a thousandth of them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made, made.open("x.npy", "w", force_zip64=True) as member:
        member.write(b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little"))
        for _ in range(size // 2**20):
            member.write(bytes(2**20))
    return path


@pytest.mark.parametrize(
    "read", [read_archive, lambda path: read_archived(path, "x"), lambda path: read_npz(path, "x[0]")]
)
def test_a_header_is_not_read_that_is_too_long(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = _header_bomb(tmp_path / "bomb.npz", 2**26)
    tracemalloc.start()
    try:
        with pytest.raises(JellyBeanError, match="a header of 67,108,864 bytes"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_header_of_a_file_of_one_array_is_not_read_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npy"
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"))
        file.truncate(2**31)
    with pytest.raises(JellyBeanError, match="a header of 2,147,483,648 bytes"):
        read_npy(path)


def test_an_array_may_be_limited_to_what_is_read_of_it(archive: Path) -> None:
    assert read_archived(archive, "x", 1000).shape == (3, 2)
    with pytest.raises(JellyBeanError, match="bytes unpacked, of which 100 are read here"):
        read_archived(archive, "x", 100)
