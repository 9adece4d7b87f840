"""Plans of a gateway's process, and calls to it: refusals, metrics, and requests of the Open Inference Protocol."""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2
from tests.support.gateway_in_process import Document, RunningGateway
from tests.support.tiny_models import make_plan, scale

INFER = "/inference.GRPCInferenceService/ModelInfer"


def plan_of(root: Path, *workers: str, factor: float = 2.0, **settings: Any) -> Document:
    """`double` on these workers in equal shares; with another factor another plan."""
    operators = {"double": (["x"], scale(root / "models/double.onnx", factor))}
    routes = [(1.0 / len(workers), {"double": worker}) for worker in workers]
    return make_plan(root, operators, routes, **{"sources": {"x": "edge"}, **settings})


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Status and reason of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Metrics by name and values of labels."""
    return {
        (sample.name.removeprefix("jellybean_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def metrics_of(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    """The metrics of the gateway and its workers now."""
    return samples((await gateway.stub.Metrics(agent_pb2.MetricsRequest())).text)


def model_request(request_id: str = "", **parameters: str) -> inference_pb2.ModelInferRequest:
    """A request of the Open Inference Protocol with the bytes of `INPUTS`."""
    request = inference_pb2.ModelInferRequest(model_name="tiny", id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(struct.pack("4f", 1, 2, 3, 4))
    return request


def model_call(channel: grpc.aio.Channel) -> Any:
    """The method of the Open Inference Protocol for one request."""
    return channel.unary_unary(
        INFER,
        request_serializer=inference_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=inference_pb2.ModelInferResponse.FromString,
    )
