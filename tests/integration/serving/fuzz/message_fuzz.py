"""Mutated messages against a live agent: what is sent, and what may come back.

Half of them still parse: their fields are exchanged for others, near and far from what the plan knows. The other half
are bytes of such messages, changed until they no longer parse.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from jellybean_agent import DELIVER_METHOD
from jellybean_agent.security.identity import SENDER_KEY
from jellybean_agent.transport.channels import CHANNEL_OPTIONS
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb

INFER = "/inference.GRPCInferenceService/ModelInfer"
CLEAN = {
    *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND),
    *(grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED),
    grpc.StatusCode.DEADLINE_EXCEEDED,  # of a request that asked for a short time
}
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)
_STREAM = 20  # messages of one stream that leave it open
_UNARY = 22
_CALL_S = 60.0
_NAMES = ("x", "double", "triple", "both", "", "moon", "\0", "é" * 30, "x" * 300)
_DTYPES = ("float32", "float64", "int64", "bool", "uint8", "FP32", "INT64", "BYTES", "BOOL", "object", "", "f4")
_SIZES = (0, 1, 2, 3, 4, 5, 16, 255, 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -1, -4, -(2**63))


@dataclass
class Told:
    """What the agent said to all that was sent."""

    sent: Counter[str] = field(default_factory=Counter)  # "parses", "broken"
    statuses: Counter[str] = field(default_factory=Counter)
    unclean: list[str] = field(default_factory=list)

    def say(self, code: grpc.StatusCode, details: str) -> None:
        self.statuses[code.name] += 1
        if code not in CLEAN or "Traceback" in details or len(details) > 2100:
            self.unclean.append(f"{code.name}: {details[:300]}")


class Mutator:
    """Messages by one seed, the same ones every time."""

    def __init__(self, seed: int, plan: str) -> None:
        self._random, self._plan = random.Random(seed), plan
        self._numbers = iter(range(10**9))

    def message(self) -> agent_pb2.Message:
        """A Deliver message of the plan with up to three fields that are not what they should be."""
        choose = self._random.choice
        request = f"fuzz-{next(self._numbers)}"
        message = agent_pb2.Message(request_id=request, upstream="x", downstream="double", plan=self._plan)
        message.tensor.CopyFrom(agent_pb2.Tensor(dtype="float32", shape=[1, 4], data=struct.pack("<4f", 1, 2, 3, 4)))
        changes = [
            lambda: setattr(message, "request_id", choose(("", "fuzz-1", "direct-0", "x" * 5000, "\ud7ff\0"))),
            lambda: setattr(message, "route", choose((1, 2, 7, 2**31, 2**32 - 1))),
            lambda: setattr(message, "upstream", choose(_NAMES)),
            lambda: setattr(message, "downstream", choose(_NAMES)),
            lambda: message.path.add(index=choose((0, 1, 2**32 - 1)), count=choose((0, 1, 2, 65537, 2**32 - 1))),
            lambda: setattr(message.tensor, "dtype", choose(_DTYPES)),
            lambda: message.tensor.shape.append(choose(_SIZES)),
            lambda: message.tensor.shape.__setitem__(0, choose(_SIZES)) if message.tensor.shape else None,
            lambda: message.tensor.ClearField("shape"),
            lambda: message.tensor.shape.extend([1] * 40),
            lambda: setattr(message.tensor, "data", self._random.randbytes(choose((0, 1, 15, 17, 64, 4096)))),
            lambda: message.ClearField("tensor"),
            lambda: message.failure.CopyFrom(agent_pb2.Failure(reason="x" * 300, status=choose((0, 99, 2**32 - 1)))),
            lambda: [setattr(message, f.name, choose((-1.0, 0.001, 1e308, float("nan"), float("inf"))))
                     for f in message.DESCRIPTOR.fields if f.type == f.TYPE_DOUBLE],
        ]  # fmt: skip
        for change in self._random.sample(changes, self._random.randint(0, 3)):
            change()
        return message

    def infer(self) -> pb.ModelInferRequest:
        """An inference request for an operator by itself, changed likewise."""
        choose = self._random.choice
        request = pb.ModelInferRequest(model_name="double", raw_input_contents=[struct.pack("<4f", 1, 2, 3, 4)])
        one = request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        changes = [
            lambda: setattr(request, "model_name", choose(_NAMES)),
            lambda: setattr(request, "model_version", choose(_NAMES)),
            lambda: setattr(one, "name", choose(_NAMES)),
            lambda: setattr(one, "datatype", choose(_DTYPES)),
            lambda: one.shape.append(choose(_SIZES)),
            lambda: one.shape.__setitem__(0, choose(_SIZES)) if one.shape else None,
            lambda: one.ClearField("shape"),
            lambda: request.raw_input_contents.append(b"x" * choose((0, 1, 4096))),
            lambda: request.ClearField("raw_input_contents"),
            lambda: one.contents.fp32_contents.extend([1.0] * choose((1, 4, 5))),
            lambda: one.contents.int64_contents.append(2**62),
            lambda: one.contents.bytes_contents.append(b"\xff"),
            lambda: request.inputs.add(name=choose(_NAMES)),
            lambda: request.ClearField("inputs"),
            lambda: request.outputs.add(name=choose(_NAMES)),
            lambda: request.parameters["timeout"].__setattr__("int64_param", choose((-1, 0, 1, 1000, 2**62))),
            lambda: request.parameters["sequence_id"].__setattr__("string_param", "x"),
            lambda: one.parameters["shared_memory_region"].__setattr__("string_param", "x"),
            lambda: setattr(request, "id", "x" * choose((0, 10, 60_000))),
        ]
        for change in self._random.sample(changes, self._random.randint(0, 3)):
            change()
        return request

    def broken(self, data: bytes, kind: Any) -> bytes:
        """The bytes changed until they are no message of a kind any more."""
        while True:
            where = self._random.randrange(len(data) or 1)
            data = self._random.choice(
                (
                    data[:where],
                    data[:where] + self._random.randbytes(self._random.randint(1, 8)) + data[where:],
                    data[:where] + bytes([self._random.randrange(256)]) + data[where + 1 :],
                    data[where:] + data[:where],
                    data + data[:where],
                )
            )[:20_000]
            try:
                kind.FromString(data)
            except DecodeError:
                return data


async def fuzz(address: str, plan: str, count: int, seed: int, told: Told) -> None:
    """Send so many messages, half of which parse, over a few streams and calls at a time."""
    mutator = Mutator(seed, plan)
    async with grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS]) as channel:
        deliver, infer = channel.stream_stream(DELIVER_METHOD), channel.unary_unary(INFER)

        async def stream(messages: list[bytes], number: int) -> None:
            call = deliver(metadata=((SENDER_KEY, f"fuzzer-{number}"),), timeout=_CALL_S)
            with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
                await call.read()  # the credit without which nothing may be sent
                for message in messages:
                    await call.write(message)
                await call.done_writing()
                while (await call.read()) is not _EOF:
                    pass
            told.say(await call.code(), await call.details() or "")

        async def unary(data: bytes) -> None:
            try:
                await infer(data, timeout=_CALL_S)
                told.say(grpc.StatusCode.OK, "")
            except grpc.aio.AioRpcError as error:
                told.say(error.code(), error.details() or "")

        for number, (streamed, called) in enumerate(_rounds(mutator, count, told)):
            await asyncio.gather(stream(streamed, number % 50), *map(unary, called))


def _rounds(mutator: Mutator, count: int, told: Told) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """What is sent at a time: a stream that ends with what breaks it, and calls beside it."""
    left = count
    while left > 0:
        streamed = [mutator.message().SerializeToString() for _ in range(_STREAM)]
        streamed.append(mutator.broken(mutator.message().SerializeToString(), agent_pb2.Message))
        called = [mutator.infer().SerializeToString() for _ in range(2)]
        called += [mutator.broken(mutator.infer().SerializeToString(), pb.ModelInferRequest) for _ in range(_UNARY - 1)]
        told.sent["parses"] += _STREAM + 2
        told.sent["broken"] += _UNARY
        left -= _STREAM + 2 + _UNARY
        yield streamed, called
