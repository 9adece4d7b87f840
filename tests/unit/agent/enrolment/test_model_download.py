"""Downloads of model files beside a plan that is served: resumed, verified, and never hashed in the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest

from jellybean_agent import ModelError
from jellybean_agent.enrolment import model_download
from jellybean_agent.enrolment.model_download import fetch_beside, partial_file, remove_partial_files
from jellybean_protos.enrol.v1 import enrol_pb2

MODEL = bytes(range(256)) * 8
SHA256 = hashlib.sha256(MODEL).hexdigest()


class Source:
    """Sends a model in pieces, as the gateway does. `offsets`: where each download began."""

    def __init__(self, model: bytes = MODEL) -> None:
        self.model, self.offsets = model, list[int]()

    async def Model(self, request: enrol_pb2.ModelRequest, metadata: Any) -> AsyncIterator[enrol_pb2.ModelPart]:
        self.offsets.append(request.offset)
        for begin in range(request.offset, len(self.model), 300):
            yield enrol_pb2.ModelPart(data=self.model[begin : begin + 300], size=len(self.model))


def test_a_download_is_resumed_and_one_that_is_complete_is_not_repeated(tmp_path: Path) -> None:
    source, path = Source(), tmp_path / "models/m.onnx"
    part = partial_file(path, SHA256)
    part.parent.mkdir()
    part.write_bytes(MODEL[:700])
    for _ in range(2):
        assert asyncio.run(fetch_beside(source, SHA256, path)) == part
        assert part.read_bytes() == MODEL
    assert source.offsets == [700]
    part.replace(path)
    assert asyncio.run(fetch_beside(source, SHA256, path)) is None
    with pytest.raises(ModelError, match="not kept"):
        asyncio.run(fetch_beside(Source(MODEL[::-1]), SHA256, tmp_path / "other.onnx"))
    assert sorted(found.name for found in tmp_path.rglob("*.*")) == ["m.onnx"]


def test_files_are_hashed_and_written_in_threads_as_the_event_loop_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"of the plan before")
    partial_file(path, SHA256).write_bytes(MODEL[:700])
    threads: dict[str, set[int]] = {"file_digest": set(), "fsync": set(), "read": set()}
    digest_of, fsync, hash_content = hashlib.file_digest, os.fsync, model_download._hash_content

    def file_digest(file: Any, name: str) -> Any:
        threads["file_digest"].add(threading.get_ident())
        return digest_of(file, name)

    def to_disk(descriptor: int) -> None:
        threads["fsync"].add(threading.get_ident())
        fsync(descriptor)

    def read(file: IO[bytes], digest: Any) -> None:
        threads["read"].add(threading.get_ident())
        hash_content(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    monkeypatch.setattr(os, "fsync", to_disk)
    monkeypatch.setattr(model_download, "_hash_content", read)
    assert asyncio.run(fetch_beside(Source(), SHA256, path)) is not None
    assert all(threads.values())
    assert threading.get_ident() not in set().union(*threads.values())


def test_partial_files_of_abandoned_plans_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = partial_file(tmp_path / "models/b.onnx", SHA256)
    names = ["a.onnx", f"a.onnx.{SHA256[:16]}.part", "models/b.onnx", f"models/b.onnx.{'0' * 16}.part", "models/c.part"]
    kept.parent.mkdir()
    for path in (kept, *(tmp_path / name for name in names)):
        path.write_bytes(b"x")
    remove_partial_files(tmp_path, {kept})
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        [tmp_path / "a.onnx", tmp_path / "models/b.onnx", tmp_path / "models/c.part", kept]
    )
