"""Two operators of a worker, served by the Open Inference Protocol in simulated time, and requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import MODEL_INFER_METHOD, AgentError, InferenceService
from jellybean_agent.inference.fast_operators import FastOperators
from jellybean_agent.inference.operators import Operators
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.http2_client import CallServer, Http2Client, content, unary_call
from tests.support.tiny_models import make_plan
from tests.unit.agent.worker.timed_worker import Worker, with_worker

SERVICE = MODEL_INFER_METHOD.rpartition("/")[0]
HASH = "0" * 64


class Served:
    """A worker of two operators behind a server; `fast`: whether requests may take the fast path."""

    def __init__(self, worker: Worker, *, fast: bool) -> None:
        self.worker = worker
        self.refused: list[AgentError] = []
        operators = Operators(worker)
        self.service = InferenceService(operators, self.refused.append)
        self.calls = CallServer()
        self.calls.server.add_generic_rpc_handlers((self.service.handler(),))
        if fast:
            self.calls.server.add_raw(MODEL_INFER_METHOD, FastOperators(operators))
        self.client = Http2Client(self.calls.server.open_port())
        self._numbers = iter(range(1, 9999, 2))

    async def start(self) -> None:
        await self.client.greet()

    async def call(self, name: str, request: Any, response: Any = None, wait_s: float = 1.1) -> Any:
        """What a method answers: a response, or (number of the status, reason)."""
        number = next(self._numbers)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answers = await self.client.send(unary_call(number, data, f"{SERVICE}/{name}"))
        await asyncio.sleep(wait_s)
        answers += await self.client.frames()
        status = self.client.status(answers, number)
        if status[0]:
            return status
        kind = response or getattr(pb, f"{name}Response")
        return kind.FromString(content(answers, number)[5:])

    async def refusal(self, name: str, request: Any, wait_s: float = 0.0) -> tuple[grpc.StatusCode, str]:
        """The status and the reason of a refused call."""
        number, reason = await self.call(name, request, wait_s=wait_s)
        return next(code for code in grpc.StatusCode if code.value[0] == number), reason


def served(folder: Path, test: Callable[[Served], Awaitable[None]], *, fast: bool = False) -> None:
    """Run a test with a worker of the operators `add` and `both`."""

    async def run(worker: Worker) -> None:
        found = Served(worker, fast=fast)
        await found.start()
        await test(found)

    operators = {"add": (["x"], HASH), "both": (["x", "z"], HASH)}
    routes = [(1.0, dict.fromkeys(operators, "edge-1"))]
    document = make_plan(folder, operators, routes, sources={"x": "edge", "z": "edge"})
    with_worker(document, "edge-1", folder, run)


def infer(value: float = 1.0, model: str = "add", **more: Any) -> pb.ModelInferRequest:
    """A request with raw contents for each input."""
    request = pb.ModelInferRequest(model_name=model, **more)
    for name in ("x",) if model == "add" else ("x", "z"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
        request.raw_input_contents.append(np.full((1, 2), value, "<f4").tobytes())
    return request


# The fast path and the general one must give the same answer.
paths = pytest.mark.parametrize("fast", [False, True], ids=["general", "fast"])
