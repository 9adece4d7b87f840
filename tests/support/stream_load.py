"""Streams that send one chunk after another, while things happen to what serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio
import numpy as np

from jellybean.serving import Chunk, request_of
from jellybean_agent import decode_tensor, protocol_metadata
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc

PAUSE_S = 0.01  # between a stream's chunks


class StreamLoad:
    """Streams of one source and one sink; `answers` has those of each stream, `inputs` its chunks."""

    def __init__(self, address: str, source: str, sink: str, inputs: Sequence[np.ndarray]) -> None:
        self._address, self._source, self._sink, self._inputs = address, source, sink, inputs
        self.answers: list[list[np.ndarray]] = [[] for _ in inputs]

    async def run(self, *events: Callable[[], object]) -> None:
        """Send everything. `events` run in a thread, at even distances; no stream waits for them."""
        chunks = min(map(len, self._inputs))
        async with grpc.aio.insecure_channel(self._address) as channel, asyncio.TaskGroup() as streams:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            for number in range(len(self._inputs)):
                streams.create_task(self._stream(stub, number))
            for index, event in enumerate(events, 1):
                while min(map(len, self.answers)) < index * chunks // (len(events) + 1):
                    await asyncio.sleep(PAUSE_S)
                await asyncio.to_thread(event)

    async def _stream(self, stub: gateway_pb2_grpc.GatewayStub, number: int) -> None:
        inputs = self._inputs[number]
        for index, value in enumerate(inputs):
            chunk = Chunk(f"s{number}", begins=index == 0, ends=index == len(inputs) - 1, number=index + 1)
            request: gateway_pb2.InferRequest = request_of({self._source: value}, chunk=chunk)
            response = await stub.Infer(request, timeout=30.0, metadata=protocol_metadata())
            self.answers[number].append(decode_tensor(response.outputs[self._sink]))
            await asyncio.sleep(PAUSE_S)
