"""Checkpoints are atomic: a broken one is refused and the previous one is used."""

from __future__ import annotations

import json
import resource

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import TrainingError, newest_position
from jellybean.training.checkpoints.checkpoint import (
    clear_partial,
    finish_checkpoint,
    load_at,
    load_newest,
    rank_file,
    write_rank_file,
)
from jellybean.training.checkpoints.position import Position


def _kept(folder, epochs, keep=5, best=None):
    hashes = {
        rank: write_rank_file(folder, Position(epochs), rank, {f"weight/{rank}": torch.full((9,), float(epochs))})
        for rank in range(2)
    }
    return finish_checkpoint(folder, Position(epochs), hashes, {"optimizer": "sgd"}, keep, best)


def test_the_newest_of_all_ranks(tmp_path):
    for epochs in (1, 2, 10):
        _kept(tmp_path, epochs, keep=2)
    found = load_newest(tmp_path)
    assert sorted(found.tensors) == ["weight/0", "weight/1"]
    assert float(found.tensors["weight/1"][0]) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-10", "epoch-2"]


def test_the_best_one_stays_beside_the_newest(tmp_path):
    for epochs in range(1, 6):
        _kept(tmp_path, epochs, keep=2, best=Position(min(epochs, 2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-2", "epoch-4", "epoch-5"]
    _kept(tmp_path, 6, keep=2, best=Position(6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-5", "epoch-6"]
    assert load_at(tmp_path, Position(5)).position == Position(5)
    with pytest.raises(TrainingError, match="epoch-2 cannot be read"):
        load_at(tmp_path, Position(2))


def test_what_was_just_written_stays(tmp_path):
    """A broken checkpoint of a later epoch, from which the run did not resume, is kept beside it."""
    _kept(tmp_path, 5)
    _kept(tmp_path, 1)
    assert _kept(tmp_path, 2, keep=1).is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-2", "epoch-5"]


def test_checkpoints_within_an_epoch_are_between_those_of_epochs(tmp_path):
    for position in (Position(1, 10), Position(2), Position(1, 9), Position(2, 3), Position(1)):
        hashes = {0: write_rank_file(tmp_path, position, 0, {"weight/a": torch.full((3,), float(position.updates))})}
        finish_checkpoint(tmp_path, position, hashes, {}, 5)
    found = load_newest(tmp_path)
    assert found.position == newest_position(tmp_path) == Position(2, 3)
    assert found.path.name == "epoch-2-update-3"
    assert float(found.tensors["weight/a"][0]) == 3.0
    assert str(found.position) == "update 3 of epoch 3"
    finish_checkpoint(tmp_path, Position(3), {0: write_rank_file(tmp_path, Position(3), 0, {})}, {}, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-2-update-3", "epoch-3"]


def test_a_checkpoint_of_version_1_is_read(tmp_path):
    path = _kept(tmp_path, 4) / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest.pop("updates") == 0
    path.write_text(json.dumps({**manifest, "version": 1}), encoding="utf-8")
    assert load_newest(tmp_path).position == Position(4)
    path.write_text(json.dumps({**manifest, "version": 3}), encoding="utf-8")
    with pytest.raises(TrainingError, match="it is of version 3, and versions up to 2 are read here"):
        load_newest(tmp_path)


def test_none(tmp_path):
    assert load_newest(tmp_path / "nothing") is None


@pytest.mark.parametrize("damage", ["torn", "changed", "gone", "manifest"])
def test_broken_ones_are_passed_over(tmp_path, damage):
    _kept(tmp_path, 1)
    path = _kept(tmp_path, 2) / ("manifest.json" if damage == "manifest" else rank_file(1))
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage != "changed" else whole[:-1] + b"x")
    found = load_newest(tmp_path)
    assert found.manifest["epochs"] == 1
    assert "epoch-2 is not used" in found.skipped[0]
    (tmp_path / "epoch-1" / "manifest.json").unlink()
    with pytest.raises(TrainingError, match="--fresh"):
        load_newest(tmp_path)


@pytest.mark.parametrize("part", [rank_file(0), rank_file(1), "manifest.json"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_torn_anywhere(tmp_path, part, share):
    """Truncated, or filled with zeros as some file systems do after a power failure."""
    _kept(tmp_path, 1)
    path = _kept(tmp_path, 2) / part
    whole = path.read_bytes()
    cut = int(share * len(whole))
    for torn in (whole[:cut], whole[:cut] + bytes(len(whole) - cut)):
        path.write_bytes(torn)
        found = load_newest(tmp_path)
        assert (found.manifest["epochs"], len(found.skipped)) == (1, 1)
    path.unlink()
    path.mkdir()
    assert load_newest(tmp_path).manifest["epochs"] == 1


@pytest.mark.parametrize(
    "manifest", ["[]", "1", "null", "{}", '{"version": 1, "epochs": 2, "files": []}', '{"version": 1, "files": {}}']
)
def test_a_manifest_that_is_none(tmp_path, manifest):
    _kept(tmp_path, 1)
    (_kept(tmp_path, 2) / "manifest.json").write_text(manifest, encoding="utf-8")
    assert load_newest(tmp_path).manifest["epochs"] == 1


def test_half_written_ones_do_not_count(tmp_path):
    write_rank_file(tmp_path, Position(3), 0, {"weight/a": torch.zeros(3)})
    assert load_newest(tmp_path) is None
    clear_partial(tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_room_is_said_and_the_one_before_stays(tmp_path):
    """A file size limit simulates a full disk: both raise OSError in the middle of a write."""
    _kept(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(TrainingError, match="epoch 2 cannot be written"):
            write_rank_file(tmp_path, Position(2), 0, {"weight/a": torch.zeros(1 << 16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_newest(tmp_path).manifest["epochs"] == 1
