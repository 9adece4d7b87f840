"""Models of each kind through a gateway and its agents: each interface gives the bits that onnxruntime gives."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jellybean.serving import Chunk, Client, Running
from jellybean_agent import DTYPE_BY_DATATYPE, WIRE_DTYPES
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.integration.serving.inference.calls import infer_on
from tests.support.command_line import jellybean
from tests.support.drafted_models import (
    Array,
    DraftedModel,
    answers_by_hand,
    difference,
    drafted_model,
    tensor_of_json,
)
from tests.support.made_models import KINDS, made_models
from tests.support.ports import free_port

pytest.importorskip("aiohttp", reason="HTTP is an extra: pip install 'jellybean-serving[http]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_DATATYPES = {dtype: datatype for datatype, dtype in DTYPE_BY_DATATYPE.items()}
Inputs = Mapping[str, Array]  # by source


@dataclass(frozen=True)
class Place:
    """Where a request stands among those of its model: the first begins a stream, if the model keeps a state."""

    model: str
    number: int
    count: int
    has_state: bool

    @property
    def parameters(self) -> dict[str, Any]:
        """As the Open Inference Protocol has it. Each interface has a stream of its own."""
        if not self.has_state:
            return {}
        return {"sequence_start": self.number == 0, "sequence_end": self.number == self.count - 1}


@pytest.fixture
def models(tmp_path: Path) -> dict[str, DraftedModel]:
    """Workflow -> its model: 4 of each kind, of those that are served, in one project."""
    (tmp_path / "project/workflows").mkdir(parents=True)
    found: dict[str, DraftedModel] = {}
    for number, made in enumerate(made_models(tmp_path, seed=3, count=4 * len(KINDS))):
        if made.refusal or not made.requests:
            continue
        folder = tmp_path / f"project/workflows/w{number}"
        drafted = drafted_model(made, folder)
        assert isinstance(drafted, DraftedModel), (made.what, drafted)
        shutil.move(folder / "infrastructure.yaml", tmp_path / "project/infrastructure.yaml")
        found[folder.name] = drafted
    assert len(found) > 2 * len(KINDS)
    return found


def by_client(running: Running) -> Callable[[Place, Inputs], Array]:
    def answer(place: Place, inputs: Inputs) -> Array:
        chunk = Chunk("s", begins=place.number == 0, ends=place.number == place.count - 1) if place.has_state else None
        with Client(running.gateway_address, workflow=place.model) as client:
            (found,) = client.infer(dict(inputs), chunk=chunk).values()
        return found

    return answer


def by_grpc(channel: grpc.Channel) -> Callable[[Place, Inputs], Array]:
    call = infer_on(channel)

    def answer(place: Place, inputs: Inputs) -> Array:
        request = pb.ModelInferRequest(model_name=place.model)
        for name, value in place.parameters.items():
            request.parameters[name].bool_param = value
        if place.has_state:
            request.parameters["sequence_id"].string_param = "grpc"
        for name, array in inputs.items():
            request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        response = call(request.SerializeToString(), timeout=20)
        (output,), (raw,) = response.outputs, response.raw_output_contents
        return np.frombuffer(raw, WIRE_DTYPES[DTYPE_BY_DATATYPE[output.datatype]]).reshape(tuple(output.shape))

    return answer


def by_http(port: int, *, binary: bool) -> Callable[[Place, Inputs], Array]:
    """As curl would: tensors in JSON, or as bytes behind it."""

    def answer(place: Place, inputs: Inputs) -> Array:
        items: list[dict[str, Any]] = []
        for name, array in inputs.items():
            item = {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape)}
            more = {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}
            items.append(item | more)
        sequence = {"sequence_id": f"http {binary}"} if place.has_state else {}
        parameters = place.parameters | sequence | ({"binary_data_output": True} if binary else {})
        head = json.dumps({"inputs": items, "parameters": parameters}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
        body = head + b"".join(array.tobytes() for array in inputs.values() if binary)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", f"/v2/models/{place.model}/infer", body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        assert response.status == 200, content
        size = int(response.getheader("Inference-Header-Content-Length", len(content)))
        (output,) = json.loads(content[:size])["outputs"]
        if not binary:
            return tensor_of_json(output)
        dtype = WIRE_DTYPES[DTYPE_BY_DATATYPE[output["datatype"]]]
        return np.frombuffer(content[size:], dtype).reshape(output["shape"])

    return answer


def faults(answer: Callable[[Place, Inputs], Array], name: str, drafted: DraftedModel) -> Iterator[str]:
    """How the answers of one interface differ from onnxruntime's."""
    made = drafted.made
    for number, (request, wanted) in enumerate(zip(made.requests, answers_by_hand(drafted), strict=True)):
        inputs = {source: request[port] for port, source in drafted.sources.items()}
        place = Place(name, number, len(made.requests), bool(made.states))
        if fault := difference(made, wanted, answer(place, inputs)):
            yield fault


def is_finite(drafted: DraftedModel) -> bool:
    """True if JSON has all values of its requests and answers."""
    tensors = [*answers_by_hand(drafted), *(array for request in drafted.made.requests for array in request.values())]
    return all(np.isfinite(array.astype(np.float64)).all() for array in tensors)


def test_each_interface_gives_the_answers_of_onnxruntime(
    tmp_path: Path, models: dict[str, DraftedModel], start: Callable[..., Running]
) -> None:
    project, port = tmp_path / "project", free_port()
    jellybean("plan", str(project))
    plan = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    running = start(project, plan, http_port=port)
    with grpc.insecure_channel(running.gateway_address) as channel:
        interfaces = {
            "client": by_client(running),
            "gRPC": by_grpc(channel),
            "bytes": by_http(port, binary=True),
            "JSON": by_http(port, binary=False),
        }
        found = [
            f"{interface}: {fault}"
            for interface, answer in interfaces.items()
            for name, drafted in models.items()
            if interface != "JSON" or is_finite(drafted)
            for fault in faults(answer, name, drafted)
        ]
    assert found == []
