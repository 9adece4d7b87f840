"""What a gateway sends of its project to an admin who measures from elsewhere, and what it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.report import Store
from jellybean.serving.gateway import project_service
from jellybean.serving.gateway.project_service import ProjectService
from jellybean_protos.gateway.v1 import project_pb2 as pb
from jellybean_solver import to_document
from tests import report_plans


class Call:
    async def abort(self, status: grpc.StatusCode, reason: str) -> None:
        raise grpc.aio.AbortError(f"{status.name}: {reason}")


def files(service: ProjectService) -> Any:
    return asyncio.run(service.Files(pb.ProjectFilesRequest(), Call()))


def test_files_are_sent_under_their_names_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "held.npz").write_bytes(b"rows")
    found = files(ProjectService({"data/held.npz": tmp_path / "held.npz"}))
    assert [(file.path, file.content) for file in found.files] == [("data/held.npz", b"rows")]
    for service, words in (
        (ProjectService({}), "FAILED_PRECONDITION: this gateway has no documents and held-out data to send"),
        (ProjectService({"a": tmp_path / "none"}), "a file of the project cannot be read at the gateway"),
    ):
        with pytest.raises(grpc.aio.AbortError, match=words):
            files(service)


def test_too_much_is_refused_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_service, "MAX_BYTES", 2**20)
    (tmp_path / "held.npz").write_bytes(b"x" * 3 * 2**20)
    with pytest.raises(grpc.aio.AbortError, match="have 3 MiB, of which at most 1 are sent: run the command in a copy"):
        files(ProjectService({"held.npz": tmp_path / "held.npz"}))


def test_the_report_store_is_sent_while_it_is_written_to(tmp_path: Path) -> None:
    store = Store.of(tmp_path)

    def sent() -> bytes:
        return bytes(asyncio.run(ProjectService({}, store.path).ReportStore(pb.ReportStoreRequest(), Call())).database)

    with pytest.raises(grpc.aio.AbortError, match="this gateway has no reports"):
        sent()
    plan_hash = store.add_plan(to_document(report_plans.digits()))
    copy = Store(tmp_path / "copy.db", directory=Path("elsewhere"))
    copy.path.write_bytes(sent())
    assert (copy.plans()[0].plan_hash, copy.project) == (plan_hash, "elsewhere")
    store.path.write_bytes(b"damaged, but long enough to be a header of SQLite" * 100)
    for more in ("-wal", "-shm"):
        store.path.with_name(store.path.name + more).unlink(missing_ok=True)
    with pytest.raises(grpc.aio.AbortError, match="the gateway's reports cannot be read"):
        sent()
