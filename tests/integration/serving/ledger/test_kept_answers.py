"""Which answers are kept until their labels come: of our protocol, the Open Inference Protocol, streams and spools."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from sqlalchemy import select

from jellybean.ledger import Ledger, ledger_url, tables
from jellybean.serving import Chunk, Client, Running
from jellybean.serving.local.running import down
from jellybean_agent import decode_tensor
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import Deliver
from tests.integration.serving.inference.calls import SERVICE, infer_on
from tests.support.tiny_models import make_plan, recurrent, scale


def row(number: int) -> np.ndarray:
    return np.full((1, 4), number, np.float32)


def kept(directory: Path) -> list[tuple[str, float]]:
    """The ids of the kept answers of a run that has ended, with the first value of each, in the order of ids."""
    columns = tables.answers.c
    ledger = Ledger(ledger_url(directory))
    with ledger.reading() as connection:
        rows = connection.execute(select(columns.id, columns.outputs)).all()
    ledger.close()
    outputs = [(id_, gateway_pb2.InferResponse.FromString(data).outputs) for id_, data in rows]
    return sorted((id_, float(decode_tensor(next(iter(own.values()))).flat[0])) for id_, own in outputs)


def oip_request(running: Running, number: int, id_: str) -> bytes:
    name = json.loads((running.directory / ".jellybean/run.json").read_text(encoding="utf-8"))["workflow"]
    request = pb.ModelInferRequest(model_name=name, id=id_, raw_input_contents=[row(number).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return request.SerializeToString()


def double(tmp_path: Path, **settings: object) -> dict:
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    return make_plan(tmp_path, operators, [(1.0, {"double": "edge-1"})], sources={"x": "edge"}, **settings)


def test_requests_of_the_open_inference_protocol_are_kept_under_their_ids(tmp_path: Path, start) -> None:
    running = start(tmp_path, double(tmp_path), detach=True)
    with grpc.insecure_channel(running.state.clients_address) as channel:
        call = infer_on(channel)
        for number, id_ in ((1, "a"), (2, "b"), (3, "b"), (4, ""), (5, "c" * 257)):
            call(oip_request(running, number, id_), timeout=20.0)
        stream = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", response_deserializer=pb.ModelStreamInferResponse.FromString
        )
        assert len(list(stream(iter([oip_request(running, 6, "d")]), timeout=20.0))) == 1
    with Client.of(tmp_path) as client:
        client.infer({"x": row(7)}, request_id="e")
        client.infer({"x": row(8)})
    down(tmp_path, timeout_s=5.0)
    assert kept(tmp_path) == [("a", 2.0), ("b", 4.0), ("b", 6.0), ("d", 12.0), ("e", 14.0)]


@pytest.mark.slow
def test_requests_that_are_delivered_eventually_are_kept_once_they_have_their_answer(tmp_path: Path, start) -> None:
    running = start(tmp_path, double(tmp_path, deliver=Deliver.EVENTUALLY), detach=True)
    with Client.of(tmp_path) as client:
        for number, id_ in ((1, "a"), (1, "a"), (2, "b")):  # one is sent again, and answered once
            client.infer({"x": row(number)}, request_id=id_, timeout_s=20.0)
    with grpc.insecure_channel(running.state.clients_address) as channel:
        for number in (3, 4):
            infer_on(channel)(oip_request(running, number, "twice"), timeout=20.0)
    down(tmp_path, timeout_s=5.0)
    assert kept(tmp_path) == [("a", 2.0), ("b", 4.0), ("twice", 6.0), ("twice", 8.0)]


@pytest.mark.slow
def test_chunks_of_streams_are_kept_under_the_stream_and_their_number(tmp_path: Path, start) -> None:
    operators = {"remember": (["x"], recurrent(tmp_path / "models/remember.onnx", 0.0))}
    states = {"remember": (("state", "state_next"),)}
    route = [(1.0, {"remember": "edge-1"})]
    start(tmp_path, make_plan(tmp_path, operators, route, sources={"x": "edge"}, states=states), detach=True)
    with Client.of(tmp_path) as client:
        for number in range(1, 4):
            client.infer({"x": row(number)}, chunk=Chunk("camera-7", begins=number == 1, number=number))
        client.infer({"x": row(3)}, chunk=Chunk("camera-7", number=3))  # sent again: its answer is given again
        client.infer({"x": row(4)}, chunk=Chunk("camera-7", ends=True), request_id="the last")
    down(tmp_path, timeout_s=5.0)
    names, values = zip(*kept(tmp_path), strict=True)
    assert names == ("camera-7/1", "camera-7/2", "camera-7/3", "the last")
    assert np.allclose(values, np.tanh([1, 2, 3, 4]))
