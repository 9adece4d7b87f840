"""Pictures are written whole, or what was there stays."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from jellybean.display import pictures


class _Figure:
    """Stands for a figure of matplotlib, whose import costs more than the test."""

    def savefig(self, file: object, **_: object) -> None:
        content = bytes(10_000)
        file.write_bytes(content) if isinstance(file, Path) else file.write(content)  # type: ignore[attr-defined]


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    path.write_text("old", encoding="utf-8")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            pictures.save_figure(_Figure(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
    pictures.save_figure(_Figure(), path)
    assert path.stat().st_size == 10_000
