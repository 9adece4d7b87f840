"""The HTTP port in this process, over models that answer what the test says, and a client that writes bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jellybean.serving.http.inference_http import serve_http
from jellybean_agent import (
    PORT_LIMITS,
    Admission,
    Array,
    CertificateFolder,
    InferenceService,
    ListeningPort,
    Policy,
    Role,
    Transport,
    decode_tensor,
    encode_tensor,
)
from jellybean_agent.inference.models import ModelCounters, ServedModel
from jellybean_agent.tensors.ports import TensorPort
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.ports import free_port
from tests.support.simulated_time import run_in_simulated_time

WORKFLOW = "tiny"
PATH = "/v2/models/m/infer"


class Backend:
    """A model with an input and an output of any length. `answer`: the output of an input."""

    name, is_ready = "test", True

    def __init__(self, answer: Callable[[Array], Array], dtype: str = "float32") -> None:
        self._answer, self._dtype = answer, dtype
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0

    def models(self) -> Mapping[str, ServedModel]:
        port = (TensorPort("x", self._dtype, (-1,)),)
        return {"m": ServedModel("m", "1", "test", inputs=port, outputs=port)}

    def check_caller(self, model: str) -> None:
        pass

    def figures(self, model: str) -> ModelCounters:
        return ModelCounters(0, 0, 0, None)

    async def infer(self, model: str, inputs: Mapping[str, agent_pb2.Tensor], *_: Any) -> dict[str, agent_pb2.Tensor]:
        self.asked += 1
        await self.may_answer.wait()
        return {"x": encode_tensor(self._answer(decode_tensor(inputs["x"])))}


@dataclass
class Served:
    """A port that is served."""

    port: int
    backend: Backend
    admission: Admission = field(default_factory=Admission)
    context: ssl.SSLContext | None = None
    server_name: str | None = None

    def refused(self, reason: str) -> int:
        return self.admission.refused[ListeningPort.HTTP, reason]

    def refused_in_all(self) -> int:
        return sum(count for (port, _), count in self.admission.refused.items() if port is ListeningPort.HTTP)

    async def connect(self, source: str = "127.0.0.1", **more: Any) -> Connection:
        tls = {"ssl": self.context, "server_hostname": self.server_name} if self.context else {}
        streams = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0), **tls, **more)
        return Connection(*streams)

    async def ask(
        self, path: str = PATH, body: bytes | None = None, *, source: str = "127.0.0.1", **headers: str
    ) -> Answer:
        """One request on a connection of its own."""
        connection = await self.connect(source)
        try:
            await connection.send(request(path, body, **headers))
            return await connection.answer()
        finally:
            await connection.close()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        """The next answer. EOFError if the connection ends before."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields if field)
        }
        if headers.get("transfer-encoding") != "chunked":
            body = await self.reader.readexactly(int(headers["content-length"]))
            return Answer(int(line.split()[1]), headers, body)
        chunks = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return Answer(int(line.split()[1]), headers, b"".join(chunks))

    async def is_ended(self) -> bool:
        """Wait for the server to end the connection; False if it says something instead."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def request(path: str = PATH, body: bytes | None = None, **headers: str) -> bytes:
    """A request as bytes; GET without a body."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None and "Transfer_Encoding" not in headers and "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def tensor(values: Any, datatype: str = "FP32", **more: Any) -> bytes:
    """The body of a request for a vector."""
    item = {"name": "x", "datatype": datatype, "shape": [len(values)], "data": values}
    return json.dumps({"inputs": [item], **more}).encode()


@contextlib.asynccontextmanager
async def served(
    answer: Callable[[Array], Array] = np.negative,
    *,
    dtype: str = "float32",
    request_bytes: int = 2**26,
    tls: Path | None = None,
    renew_s: float = 300.0,
    **limits: Any,
) -> AsyncIterator[Served]:
    """Serve in this context, within these limits."""
    found = Served(free_port(), Backend(answer, dtype), Admission(request_bytes))
    folder = None if tls is None else CertificateFolder(tls)
    transport = Transport(WORKFLOW, folder, insecure=tls is None, renew_s=renew_s, admission=found.admission)
    async with serve_http(
        InferenceService(found.backend),
        ("127.0.0.1", found.port),
        transport,
        Policy(WORKFLOW, (), plain=Role.CLIENT),
        limits=replace(PORT_LIMITS[ListeningPort.HTTP], **limits),
    ):
        yield found


def run(
    test: Callable[[Served], Awaitable[None]],
    run_loop: Callable[[Callable[[], Coroutine[Any, Any, None]]], None] = lambda body: asyncio.run(body()),
    **settings: Any,
) -> None:
    async def body() -> None:
        async with served(**settings) as port, asyncio.timeout(60):
            await test(port)

    run_loop(body)


def run_in_simulated_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """For tests of pauses: those of a busy machine are none. Bytes of this machine take no real 20 ms."""
    run_in_simulated_time(body, in_flight_s=0.02)


def gzipped(data: bytes) -> bytes:
    """The data as gzip, with the same bytes each time."""
    return gzip.compress(data, mtime=0)


ZEROS = gzipped(bytes(2**23))  # 8 MiB in 8 KiB
