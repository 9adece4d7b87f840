"""The gRPC service that gives admins the documents and held-out data of the gateway's project, to measure it with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from jellybean_agent import AgentError, StatusError, describe_error, status_of
from jellybean_protos.gateway.v1 import project_pb2 as pb

MAX_BYTES = 48 * 2**20  # of all files together: a message holds no more


class ProjectService:
    """Methods of the service `Project`. `files`: path in the project -> file; empty: there is no project here."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    async def Files(self, _request: pb.ProjectFilesRequest, context: Any) -> pb.ProjectFilesResponse:
        try:
            return await asyncio.to_thread(_read, self._files)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise


def _read(files: Mapping[str, Path]) -> pb.ProjectFilesResponse:
    """The files' content. StatusError if there are none, they are too large, or one cannot be read."""
    if not files:
        reason = "this gateway has no documents and held-out data to send: run the command in a copy of the project"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
    try:
        size = sum(file.stat().st_size for file in files.values())
        if size > MAX_BYTES:
            reason = (
                f"the project's documents and held-out data have {size / 2**20:.0f} MiB, of which at most "
                f"{MAX_BYTES // 2**20} are sent: run the command in a copy of the project"
            )
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        found = (pb.ProjectFile(path=path, content=file.read_bytes()) for path, file in files.items())
        return pb.ProjectFilesResponse(files=found)
    except OSError as error:
        reason = f"a file of the project cannot be read at the gateway: {describe_error(error)}"
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason) from error
