"""What tests ask of tritonclient, in a process of its own: its protobuf package cannot be loaded beside ours."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Inputs = dict[str, np.ndarray]


def _inputs(inputs: Inputs, datatypes: dict[str, str]) -> list[triton.InferInput]:
    found = []
    for name, array in inputs.items():
        found.append(triton.InferInput(name, list(array.shape), datatypes.get(name) or np_to_triton_dtype(array.dtype)))
        if name in datatypes:
            found[-1]._raw_content = array.tobytes()  # the client itself would refuse it
        else:
            found[-1].set_data_from_numpy(array)
    return found


def told(call: Callable[[], Any]) -> tuple[str, str]:
    """Status and message of a call that must fail."""
    try:
        found = call()
    except InferenceServerException as error:
        return (error.status() or "").removeprefix("StatusCode."), error.message()
    raise AssertionError(f"it did not fail: {found}")


def infer(
    url: str,
    model: str,
    inputs: Inputs,
    outputs: Sequence[str] | None = None,
    datatypes: dict[str, str] | None = None,
    **more: Any,
) -> tuple[dict, dict[str, np.ndarray]]:
    """The response without its tensors, and the tensors."""
    with triton.InferenceServerClient(url) as client:
        wanted = None if outputs is None else [triton.InferRequestedOutput(name) for name in outputs]
        result = client.infer(model, _inputs(inputs, datatypes or {}), outputs=wanted, **more)
        response = result.get_response()
        head = {"id": response.id, "name": response.model_name, "version": response.model_version}
        return head, {output.name: result.as_numpy(output.name) for output in response.outputs}


def refused(url: str, model: str, inputs: Inputs, **more: Any) -> tuple[str, str]:
    return told(lambda: infer(url, model, inputs, **more))


def stream(url: str, model: str, requests: Sequence[Inputs], **more: Any) -> list[tuple[str, Any, bool]]:
    """(id, tensors or error, final) in the order of the responses."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, inputs in enumerate(requests):
            client.async_stream_infer(model, _inputs(inputs, {}), request_id=str(number), **more)
        client.stop_stream()
    found = []
    for _ in requests:
        result, error = answers.get(timeout=1)
        if error is not None:
            found.append(("", error.message(), True))
        else:
            response = result.get_response()
            tensors = {output.name: result.as_numpy(output.name) for output in response.outputs}
            found.append((response.id, tensors, response.parameters["triton_final_response"].bool_param))
    assert answers.empty()
    return found


def about(url: str, model: str) -> dict[str, Any]:
    """All that a client can learn without a request."""
    with triton.InferenceServerClient(url) as client:
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready(model),
            "server": client.get_server_metadata(as_json=True),
            "metadata": client.get_model_metadata(model, as_json=True),
            "config": client.get_model_config(model, as_json=True)["config"],
            "index": client.get_model_repository_index(as_json=True)["models"],
            "statistics": client.get_inference_statistics(as_json=True)["model_stats"],
        }


def readiness(url: str, model: str) -> tuple[bool, bool, bool, list[tuple[str, str]]]:
    """Live, ready, model ready, and the state and reason of every model."""
    with triton.InferenceServerClient(url) as client:
        index = [(item.state, item.reason) for item in client.get_model_repository_index().models]
        return client.is_server_live(), client.is_server_ready(), client.is_model_ready(model), index


def refusals(url: str, model: str) -> dict[str, tuple[str, str]]:
    """What is not to be had."""
    with triton.InferenceServerClient(url) as client:
        return {
            "load": told(lambda: client.load_model(model)),
            "unload": told(lambda: client.unload_model(model)),
            "load unknown": told(lambda: client.load_model("nobody")),
            "metadata": told(lambda: client.get_model_metadata("nobody")),
            "ready": told(lambda: client.is_model_ready("nobody")),
            "config": told(lambda: client.get_model_config(model, "9")),
            "statistics": told(lambda: client.get_inference_statistics("nobody")),
            "shared memory": told(client.get_system_shared_memory_status),
            "trace": told(client.get_trace_settings),
        }


def descriptors() -> list[bytes]:
    """The client's own .proto files, compiled."""
    found = []
    for module in (service_pb2, model_config_pb2):
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        found.append(proto.SerializeToString())
    return found


def beside_our_client(url: str, inputs: Inputs) -> bool:
    """Both clients in one process, as a user may have them."""
    from jellybean.serving import Client
    from jellybean.serving.local import launcher

    assert launcher.up
    with Client(url) as client:
        ours = client.infer(inputs)
    _, theirs = infer(url, "tiny", inputs)
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in ours) and set(ours) == set(theirs)


def over_http(url: str, model: str, sent: Inputs, outputs: Sequence[str] | None = None, *, binary: bool = True) -> dict:
    """The same by tritonclient.http: what it learns, an answer and a refusal."""
    from tritonclient import http

    inputs = []
    for name, array in sent.items():
        inputs.append(http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    wanted = outputs and [http.InferRequestedOutput(name, binary_data=binary) for name in outputs]
    client = http.InferenceServerClient(url)
    try:
        result = client.infer(model, inputs, outputs=wanted, request_id="7", timeout=30_000_000)
        response = result.get_response()
        return {
            "ready": (client.is_server_live(), client.is_server_ready(), client.is_model_ready(model)),
            "server": client.get_server_metadata(),
            "metadata": client.get_model_metadata(model),
            "config": client.get_model_config(model),
            "index": client.get_model_repository_index(),
            "statistics": client.get_inference_statistics(model)["model_stats"],
            "head": {key: response[key] for key in ("id", "model_name", "model_version")},
            "tensors": {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]},
            "load": told(lambda: client.load_model(model)),
            "unknown": told(lambda: client.infer("nobody", inputs)),
            "missing": told(lambda: client.infer(model, inputs[:1])),
        }
    finally:
        client.close()
