"""The cache of finished measurements outlives crashes and forgets on request."""

from __future__ import annotations

from pathlib import Path

from jellybean.profiler.cache import FOLDER, Cache, key_of


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    Cache.open(tmp_path).put("a", [1.5, 2.5])
    again = Cache.open(tmp_path)
    assert "a" in again
    assert again["a"] == [1.5, 2.5]
    assert "b" not in again


def test_a_fresh_start_drops_everything(tmp_path: Path) -> None:
    Cache.open(tmp_path).put("a", 1)
    assert "a" not in Cache.open(tmp_path, resume=False)
    assert "a" not in Cache.open(tmp_path)


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    cache = Cache.open(tmp_path)
    cache.put("a", 1)
    cache.put("b", 2)
    path = tmp_path / FOLDER / "finished.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    again = Cache.open(tmp_path)
    assert "a" in again
    assert "b" not in again
    again.put("c", 3)
    last = Cache.open(tmp_path)
    assert (last["a"], last["c"]) == (1, 3)


def test_lines_of_another_make_are_skipped(tmp_path: Path) -> None:
    Cache.open(tmp_path).put("a", 1)
    path = tmp_path / FOLDER / "finished.jsonl"
    path.write_text('[]\n{"key": "x"}\nnull\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    cache = Cache.open(tmp_path)
    assert "x" not in cache
    assert cache["a"] == 1


def test_measurements_of_another_machine_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    here, there = Cache(path, "a laptop"), Cache(path, "a server")
    here.put("a", 1)
    assert "a" in here
    for line in path.read_text(encoding="utf-8").splitlines():
        there._parse(line)
    assert "a" not in there


def test_keys_depend_on_every_setting() -> None:
    base = key_of(model="m", speed=0.1, batch=1)
    assert base == key_of(batch=1, speed=0.1, model="m")
    assert len({base, key_of(model="n", speed=0.1, batch=1), key_of(model="m", speed=0.2, batch=1)}) == 3
