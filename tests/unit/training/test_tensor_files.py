"""Tensors are read from the files that have them, and only these are verified."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import TrainingError
from jellybean.training.checkpoints.checkpoint import (
    finish_checkpoint,
    load_exact,
    load_newest,
    rank_file,
    write_rank_file,
)
from jellybean.training.checkpoints.position import Position


def _written(folder):
    both = torch.arange(4.0)
    hashes = {0: write_rank_file(folder, Position(1), 0, {"weight/a": both, "weight/same": both[:2]})}
    hashes[1] = write_rank_file(folder, Position(1), 1, {"weight/b": torch.ones(3)})
    return finish_checkpoint(folder, Position(1), hashes, {}, keep=1)


def test_each_by_its_name(tmp_path):
    found = load_newest(_written(tmp_path).parent).tensors

    assert sorted(found) == ["weight/a", "weight/b", "weight/same"]
    assert [found[name].tolist() for name in found] == [[0, 1, 2, 3], [0, 1], [1, 1, 1]]
    assert found.shape("weight/b") == (3,)


def test_a_rank_verifies_the_files_that_it_reads(tmp_path):
    path = _written(tmp_path)
    sha256 = load_newest(tmp_path).sha256
    torn = path / rank_file(1)
    torn.write_bytes(torn.read_bytes()[:-1] + b"x")

    assert load_exact(path, sha256, lambda name: name == "weight/a").tensors["weight/a"].tolist() == [0, 1, 2, 3]
    with pytest.raises(TrainingError, match=r"rank-1\.safetensors is truncated or was changed"):
        load_exact(path, sha256, lambda name: name == "weight/b")
