"""The Open Inference Protocol on a gateway and on agents, spoken by tritonclient in a process of its own."""

from __future__ import annotations

import random
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from jellybean.serving import Client, Running
from jellybean_agent.transport.channels import CHANNEL_OPTIONS
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.integration.serving.inference.calls import SERVICE, address, infer_on, inputs, same
from tests.integration.serving.inference.triton_remote import Remote


def test_what_a_gateway_says_of_itself(tiny: Running, remote: Remote) -> None:
    version = tiny.state.plan[:12]
    found = remote("about", tiny.gateway_address, "tiny")
    assert (found["live"], found["ready"], found["model_ready"]) == (True, True, True)
    assert found["server"]["name"] == "jellybean-gateway"
    assert found["index"] == [{"name": "tiny", "version": version, "state": "READY"}]
    assert found["metadata"] == {
        "name": "tiny",
        "versions": [version],
        "platform": "jellybean_workflow",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": ["1", "4"]},
            {"name": "y", "datatype": "FP32", "shape": ["1", "-1"]},
        ],
        "outputs": [
            {"name": "join", "datatype": "FP32", "shape": ["1", "4"]},
            {"name": "sum", "datatype": "FP32", "shape": ["1", "1"]},
            {"name": "tenth", "datatype": "FP32", "shape": ["-1", "1"]},
        ],
    }
    assert found["config"]["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": ["1", "4"]}
    assert found["config"]["output"][2] == {"name": "tenth", "data_type": "TYPE_FP32", "dims": ["-1", "1"]}
    began_s = time.time()
    with Client(tiny.gateway_address) as client:
        client.infer(inputs())
        answered = client.status().answered
    (statistics,) = remote("about", tiny.gateway_address, "tiny")["statistics"]
    assert (statistics["name"], int(statistics["inference_count"])) == ("tiny", answered)
    assert int(statistics["inference_stats"]["success"]["ns"]) > 0
    assert int(began_s * 1e3) <= int(statistics["last_inference"]) <= time.time() * 1e3


def test_tritonclient_gets_what_our_client_gets_bit_for_bit(tiny: Running, remote: Remote) -> None:
    with Client(tiny.gateway_address) as client:
        for seed in range(5):
            sent = inputs(seed)
            head, found = remote("infer", tiny.gateway_address, "tiny", sent, request_id=f"id {seed}")
            assert head == {"id": f"id {seed}", "name": "tiny", "version": tiny.state.plan[:12]}
            same(client.infer(sent), found)
        _, found = remote("infer", tiny.gateway_address, "tiny", inputs(), outputs=["tenth", "join"])
        assert list(found) == ["tenth", "join"]
        nothing = {"x": inputs()["x"], "y": -np.ones((1, 3), np.float32)}
        _, found = remote("infer", tiny.gateway_address, "tiny", nothing, model_version=tiny.state.plan[:12])
        same(client.infer(nothing), found)
        assert found["tenth"].shape == (0, 1)
    assert remote("beside_our_client", tiny.gateway_address, inputs())


def test_a_stream_answers_in_order_and_outlives_a_request_that_fails(tiny: Running, remote: Remote) -> None:
    sent = [inputs(seed) for seed in range(80)]  # more than are under way at once
    sent[3] = {"x": sent[3]["x"]}
    found = remote("stream", tiny.gateway_address, "tiny", sent, enable_empty_final_response=True)
    assert [item[0] for item in found] == [str(number) if number != 3 else "" for number in range(80)]
    assert all(final for _, _, final in found)
    assert found[3][1] == "a request takes one tensor per source (x, y), got x (INVALID_ARGUMENT)"
    with Client(tiny.gateway_address) as client:
        for number in (0, 4, 79):
            same(client.infer(sent[number]), found[number][1])


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        ({"model": "other"}, "NOT_FOUND", "no model 'other' here; served: tiny"),
        ({"model_version": "7"}, "NOT_FOUND", "not '7'"),
        ({"inputs": {"x": inputs()["x"]}}, "INVALID_ARGUMENT", "one tensor per source (x, y), got x"),
        ({"inputs": inputs() | {"z": inputs()["x"]}}, "INVALID_ARGUMENT", "got x, y, z"),
        ({"inputs": inputs() | {"x": np.ones((1, 4))}}, "INVALID_ARGUMENT", "expected float32 [any, 4], got float64"),
        ({"inputs": inputs() | {"x": np.ones((1, 5), np.float32)}}, "INVALID_ARGUMENT", "got float32 [1, 5]"),
        ({"inputs": inputs() | {"x": np.ones((2, 4), np.float32)}}, "INVALID_ARGUMENT", "leading dimension of 1"),
        ({"inputs": inputs() | {"x": np.array([b"text"], object)}}, "INVALID_ARGUMENT", "text (BYTES) is not served"),
        ({"datatypes": {"x": "INT64"}}, "INVALID_ARGUMENT", "int64 [1, 4] takes 32 bytes, but 16 came"),
        ({"datatypes": {"x": "BF16"}}, "INVALID_ARGUMENT", "datatype 'BF16' is not served"),
        ({"inputs": inputs() | {"y": np.ones((1, 2**24 + 2**13), np.float32)}}, "INVALID_ARGUMENT", "above the limit"),
        (
            {"inputs": inputs() | {"y": np.ones((1, 2**24 + 2**16), np.float32)}},
            "RESOURCE_EXHAUSTED",
            "larger than max",
        ),
        ({"outputs": ["join", "nobody"]}, "INVALID_ARGUMENT", "no output 'nobody'; tiny gives join, sum, tenth"),
        ({"outputs": ["join", "join"]}, "INVALID_ARGUMENT", "asked for twice"),
        ({"sequence_id": 5}, "UNIMPLEMENTED", "parameter sequence_id"),
        ({"timeout": -1}, "INVALID_ARGUMENT", "parameter timeout"),
    ],
)
def test_what_a_gateway_refuses(tiny: Running, remote: Remote, change: dict, status: str, told: str) -> None:
    model, sent = change.pop("model", "tiny"), change.pop("inputs", inputs())
    found = remote("refused", tiny.gateway_address, model, sent, **change)
    assert found[0] == status
    assert told in found[1]


def test_the_plan_decides_what_is_loaded(tiny: Running, remote: Remote) -> None:
    for url, model in ((tiny.gateway_address, "tiny"), (address(tiny, "edge-1"), "left")):
        found = remote("refusals", url, model)
        assert found["load"][0] == found["unload"][0] == "FAILED_PRECONDITION"
        assert "the plan decides what is loaded" in found["load"][1]
        for what in ("load unknown", "metadata", "ready", "config", "statistics"):
            assert found[what][0] == "NOT_FOUND", what
        assert found["shared memory"] == (
            "UNIMPLEMENTED",
            "shared memory is not served: send tensors in the request",
        )
        assert found["trace"][0] == "UNIMPLEMENTED"


def test_typed_contents_are_taken_too(tiny: Running) -> None:
    request = pb.ModelInferRequest(model_name="tiny")
    sent = inputs()
    for name, array in sent.items():
        contents = pb.InferTensorContents(fp32_contents=array.ravel())
        request.inputs.add(name=name, datatype="FP32", shape=array.shape, contents=contents)
    with grpc.insecure_channel(tiny.gateway_address) as channel, Client(tiny.gateway_address) as client:
        response = infer_on(channel)(request.SerializeToString())
        expected = client.infer(sent)
    found = zip(response.outputs, response.raw_output_contents, strict=True)
    assert {output.name: raw for output, raw in found} == {name: array.tobytes() for name, array in expected.items()}


def test_whatever_comes_the_gateway_lives_and_every_refusal_is_a_status(tiny: Running) -> None:
    drawn = random.Random(0)
    seen: dict[str, int] = {}
    with grpc.insecure_channel(tiny.gateway_address, CHANNEL_OPTIONS) as channel:
        for _ in range(200):
            try:
                infer_on(channel)(broken(drawn), timeout=10)
                status = "OK"
            except grpc.RpcError as error:
                status = error.code().name
                assert error.details()
                assert "raceback" not in error.details()
            seen[status] = seen.get(status, 0) + 1
    assert set(seen) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}, seen
    assert seen["INVALID_ARGUMENT"] > 100
    with Client(tiny.gateway_address) as client:
        assert client.status().state == "ready"
        assert client.infer(inputs())["join"].shape == (1, 4)
    for process in tiny.state.processes:
        log = Path(process.log).read_text(encoding="utf-8")
        assert "Traceback" not in log, log


def broken(drawn: random.Random) -> bytes:
    """A request with one thing wrong with it, or some bytes of it."""
    request = pb.ModelInferRequest(model_name="tiny")
    for name, array in inputs(drawn.randrange(100)).items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    first, huge = request.inputs[0], drawn.choice((-1, 2**62, 2**31, 0, 3))
    ways = [
        lambda: first.shape.append(huge),
        lambda: first.shape.extend([2] * drawn.randrange(1, 10_000)),
        lambda: setattr(first, "datatype", drawn.choice(("", "FP64", "BYTES", "💥" * 5000, "BOOL"))),
        lambda: setattr(first, "name", drawn.choice(("", "z", "y", "\0\n", "é" * 20_000))),
        request.raw_input_contents.pop,
        lambda: request.raw_input_contents.append(bytes(drawn.randrange(100))),
        lambda: request.raw_input_contents.__setitem__(0, drawn.randbytes(drawn.randrange(64))),
        lambda: first.contents.bytes_contents.append(b"x"),
        lambda: [request.inputs.add(name=str(number)) for number in range(drawn.randrange(1, 3000))],
        lambda: request.outputs.add(name=drawn.choice(("", "nobody", "x" * 70_000))),
        lambda: setattr(request.parameters["timeout"], "string_param", "soon"),
        lambda: setattr(request.parameters["sequence_id"], "int64_param", 1),
        lambda: setattr(request, "model_name", drawn.choice(("", "Tiny", "x" * 70_000))),
    ]
    way = drawn.randrange(len(ways) + 4)
    if way < len(ways):
        ways[way]()
        return request.SerializeToString()
    data = bytearray(request.SerializeToString())
    for _ in range(drawn.randrange(1, 8)):
        data[drawn.randrange(len(data))] = drawn.randrange(256)
    return bytes(data[: drawn.randrange(len(data) + 1)])


@pytest.mark.parametrize("worker", ["gateway", "edge-1"])
def test_reflection_and_health(tiny: Running, worker: str) -> None:
    url, own = tiny.gateway_address, "jellybean.gateway.v1.Gateway"
    if worker != "gateway":
        url, own = address(tiny, worker), "jellybean.agent.v1.Agent"
    with grpc.insecure_channel(url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        listed = {own, SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert set(database.get_services()) == listed
        found = DescriptorPool(database).FindServiceByName(SERVICE)
        assert found.methods_by_name["ModelInfer"].input_type.fields_by_name["raw_input_contents"].number == 7
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1


@pytest.mark.slow
def test_our_messages_are_those_of_tritonclient(remote: Remote) -> None:
    """Names, numbers and types of every field, and the methods: what we leave out is skipped, nothing is another."""
    theirs = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in remote("descriptors")]
    known = {m.name: m for file in theirs for m in file.message_type} | {e.name: e for f in theirs for e in f.enum_type}
    ours = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(ours)
    for message in ours.message_type:
        same_fields(message, known[message.name])
    assert [(v.name, v.number) for v in ours.enum_type[0].value] == [
        (v.name, v.number) for v in known["DataType"].value
    ]
    methods = {method.name: method for file in theirs for service in file.service for method in service.method}
    for method in ours.service[0].method:
        assert method.input_type == methods[method.name].input_type
        assert (method.client_streaming, method.server_streaming) == (
            methods[method.name].client_streaming,
            methods[method.name].server_streaming,
        )


def same_fields(ours: descriptor_pb2.DescriptorProto, theirs: descriptor_pb2.DescriptorProto) -> None:
    def told(field: descriptor_pb2.FieldDescriptorProto) -> tuple:
        return field.name, field.number, field.type, field.label, field.type_name

    known = {told(field) for field in theirs.field}
    assert {told(field) for field in ours.field} <= known, ours.name
    nested = {message.name: message for message in theirs.nested_type}
    for message in ours.nested_type:
        same_fields(message, nested[message.name])
