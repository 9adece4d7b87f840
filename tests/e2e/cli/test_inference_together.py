"""The Open Inference Protocol of two workflows, to a client of one of them and to one of all: over gRPC and HTTP."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean_agent import Identity, Role
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_protos.inference.v2 import inference_pb2_grpc
from tests.support.command_line import jellybean
from tests.support.ports import free_port
from tests.support.two_scales import FACTORS, make_two_scales

ROW = np.array([[1, 2, 3, 4]], np.float32)
ANN, BOB = "shop/ann", "bob"  # ann's certificate is of shop only


@dataclass(frozen=True)
class Served:
    project: Path
    port: int
    http_port: int

    def folder(self, client: str) -> Path:
        return self.project / ".jellybean/certs/client" / client

    @contextlib.contextmanager
    def stub(self, client: str) -> Iterator[inference_pb2_grpc.GRPCInferenceServiceStub]:
        ca, key, certificate = ((self.folder(client) / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
        name = Identity("two", Role.GATEWAY).tls_name
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        options = [("grpc.ssl_target_name_override", name)]
        with grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options) as channel:
            yield inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]

    def http(self, client: str, path: str, body: Any = None) -> Any:
        """The answer over HTTP; HTTPError if it is refused."""
        folder = self.folder(client)
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://localhost:{self.http_port}/v2/{path}", data)
        with urllib.request.urlopen(request, context=context, timeout=30) as response:
            return json.loads(response.read() or b"{}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(make_two_scales(tmp_path_factory.mktemp("inference") / "two"), free_port(), free_port())
    project = str(found.project)
    jellybean("plan", project)
    jellybean("certs", project, "--client", ANN, "--client", BOB)
    ports = ("--port", str(found.port), "--http-port", str(found.http_port))
    jellybean("up", project, *ports, "--tls", str(found.project / ".jellybean/certs/gateway"), "--detach")
    try:
        yield found
    finally:
        jellybean("down", project)


def _request(model: str) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=ROW.shape)
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[ROW.tobytes()])


def _answer(response: pb.ModelInferResponse) -> list[float]:
    return np.frombuffer(response.raw_output_contents[0], np.float32).tolist()


def test_over_grpc_a_client_of_one_workflow_calls_that_one_only(served: Served) -> None:
    with served.stub(BOB) as bob, served.stub(ANN) as ann:
        for _ in range(2):  # the gateway does not parse a request like one before
            for model, factor in FACTORS.items():
                assert _answer(bob.ModelInfer(_request(model), timeout=30)) == (ROW[0] * factor).tolist()
            assert _answer(ann.ModelInfer(_request("shop"), timeout=30)) == (ROW[0] * FACTORS["shop"]).tolist()
            with pytest.raises(grpc.RpcError) as refused:
                ann.ModelInfer(_request("yard"), timeout=30)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for client, seen in ((bob, FACTORS.keys()), (ann, {"shop"})):
            for model in FACTORS:
                if model in seen:
                    assert client.ModelReady(pb.ModelReadyRequest(name=model), timeout=30).ready
                    assert client.ModelMetadata(pb.ModelMetadataRequest(name=model), timeout=30).name == model
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    client.ModelMetadata(pb.ModelMetadataRequest(name=model), timeout=30)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_over_http_a_client_of_one_workflow_calls_that_one_only(served: Served) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW[0].tolist()}]}
    for client, model in ((BOB, "shop"), (BOB, "yard"), (ANN, "shop")):
        assert served.http(client, f"models/{model}")["name"] == model
        (output,) = served.http(client, f"models/{model}/infer", body)["outputs"]
        assert output["data"] == (ROW[0] * FACTORS[model]).tolist()
    label = {"id": "order-1", "label": 1}
    for path, given in (("models/yard", None), ("models/yard/infer", body), ("models/yard/labels", label)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            served.http(ANN, path, given)
        assert refused.value.code == 403
        assert json.loads(refused.value.read())["error"] == "the certificate is of workflow shop only, not of 'yard'"
