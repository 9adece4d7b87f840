"""The gRPC service that gives admins what is known of the gateway's project: documents, held-out data, reports."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import grpc

from jellybean_agent import AgentError, StatusError, describe_error, status_of
from jellybean_protos.gateway.v1 import project_pb2 as pb

Message = TypeVar("Message")
MAX_BYTES = 48 * 2**20  # of all files together: a message holds no more


class ProjectService:
    """Methods of the service `Project`. `files`: path in the project -> file; empty: there is no project here.

    `report_store`: SQLite file with what was planned, simulated and measured; None: there is none here.
    """

    def __init__(self, files: Mapping[str, Path], report_store: Path | None = None) -> None:
        self._files, self._report_store = files, report_store

    async def Files(self, _request: pb.ProjectFilesRequest, context: Any) -> pb.ProjectFilesResponse:
        return await _answer_or_abort(context, lambda: _read(self._files))

    async def ReportStore(self, _request: pb.ReportStoreRequest, context: Any) -> pb.ReportStoreResponse:
        return await _answer_or_abort(context, lambda: _database(self._report_store))


async def _answer_or_abort(context: Any, answer: Callable[[], Message]) -> Message:
    """The answer that a thread finds. The event loop does not wait for the disk."""
    try:
        return await asyncio.to_thread(answer)
    except AgentError as error:
        await context.abort(status_of(error), str(error))
        raise


def _database(path: Path | None) -> pb.ReportStoreResponse:
    """The content of an SQLite file, as of one moment. StatusError if there is none, or it is too large."""
    if path is None or not path.exists():
        reason = "this gateway has no reports: nothing of its project was planned or measured there"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            content = copy.serialize()
    except sqlite3.Error as error:
        reason = f"the gateway's reports cannot be read: {path.name}: {error}"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason) from error
    _check_size(len(content), "the reports of the gateway's project have")
    return pb.ReportStoreResponse(database=content)


def _read(files: Mapping[str, Path]) -> pb.ProjectFilesResponse:
    """The files' content. StatusError if there are none, they are too large, or one cannot be read."""
    if not files:
        reason = "this gateway has no documents and held-out data to send: run the command in a copy of the project"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
    try:
        size = sum(file.stat().st_size for file in files.values())
        _check_size(size, "the project's documents and held-out data have")
        found = (pb.ProjectFile(path=path, content=file.read_bytes()) for path, file in files.items())
        return pb.ProjectFilesResponse(files=found)
    except OSError as error:
        reason = f"a file of the project cannot be read at the gateway: {describe_error(error)}"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason) from error


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        reason = (
            f"{what} {size / 2**20:.0f} MiB, of which at most {MAX_BYTES // 2**20} are sent: run the command in a copy "
            "of the project"
        )
        raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
