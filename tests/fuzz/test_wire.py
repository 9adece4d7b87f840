"""Bytes of peers: messages of agents, of model processes and of tunnels; tensors; tokens. Only named errors escape."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.serving import make_token, open_authority
from jellybean_agent import (
    AgentError,
    EdgeMessage,
    Identity,
    InvalidInputError,
    Role,
    decode_tensor,
    encode_tensor,
    plan_view,
)
from jellybean_agent.enrolment.join_token import parse_token
from jellybean_agent.execution.process_wire import Conversation, SharedMemory
from jellybean_agent.inference.tensors import inputs_of
from jellybean_agent.relay.wire import ASK, OFFER, Greeting, GreetingError, parse_greeting, parse_refusal, refusal
from jellybean_agent.security.identity import parse_identity
from jellybean_agent.transport.message_wire import message_parts, read_message, split_message, write_message
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.examples import examples
from tests.support.fuzzing import at_most, changed_bytes, seeds
from tests.unit.agent.brain.test_plan_view import make_document

VIEW = plan_view(make_document())
MESSAGE = EdgeMessage("r-1", 0, "x", "split", (), np.ones((1, 4), np.float32), 5.0)
LARGE = EdgeMessage("r-2", 0, "split", "each", ((0, 2),), np.ones((1, 20_000), np.float32), 5.0)
MESSAGES = [b"".join(message_parts(*write_message(VIEW.hash, one))) for one in (MESSAGE, LARGE)]
# Tags and lengths of protobuf, at the ends of their ranges.
PROTOBUF = [b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x80", b"\x12\x00", b"\x0a\x04", b"\x00", b"\x08\x80\x80"]
many = settings(max_examples=examples(360, nightly=20_000))


@many
@given(changed_bytes([*MESSAGES, *seeds("message")], PROTOBUF))
def test_messages_of_agents(data: bytes) -> None:
    """Split as it is received, a message says what protobuf reads of it."""
    with at_most(4):
        try:
            wire, tensor = split_message(data)
        except DecodeError:
            return
        whole = agent_pb2.Message.FromString(data)
        assert (wire.request_id, wire.path) == (whole.request_id, whole.path)
        assert bytes(tensor or wire.tensor.data) == whole.tensor.data
        try:
            message = read_message(VIEW, ("split", "each", "sum"), wire, 0.0, tensor)
        except InvalidInputError as error:
            assert len(str(error)) < 1000
            return
        assert message.payload is None or message.payload.nbytes <= len(data)


def _raw(*frames: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


RUN = json.dumps({"do": "run", "arrays": [["float32", [1, 4], 0], ["int64", [2], 64]]}).encode()
PROCESS_PIECES = [b"[" * 2000, b"1e999", b"-1", b"null", b"\xff\xff\xff\x7f", b"9" * 400, b'"object"', b"{}", b"[]"]


@many
@given(changed_bytes([_raw(RUN), _raw(b'{"do": "end", "arrays": []}', RUN), *seeds("model-process")], PROCESS_PIECES))
def test_messages_of_a_model_process(data: bytes) -> None:
    """A model's process is not trusted by its agent: what it says is refused, and the next process is heard."""
    ours, theirs = socket.socketpair()
    file = os.memfd_create("fuzz")
    with ours, theirs, at_most(4):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        conversation = Conversation(ours, SharedMemory(file))
        with contextlib.suppress(ConnectionError, ValueError, TypeError, KeyError):
            while True:
                message = conversation.receive()
                assert isinstance(message.header, dict)
    os.close(file)


@many
@given(
    changed_bytes(
        [Greeting(OFFER, deployment="blue").encode(), Greeting(ASK, "cloud-1").encode(), *seeds("greeting")],
        [OFFER, ASK, b"\xff\xff", b"\x00\x00", b"\xc3", b"x" * 300],
    )
)
def test_greetings_of_tunnels(data: bytes) -> None:
    """What is complete is read back as it is written; what is refused stays so, whatever follows."""
    for size in range(min(len(data), 40) + 1):
        try:
            greeting = parse_greeting(data[:size])
        except GreetingError:
            with pytest.raises(GreetingError):
                parse_greeting(data)
            return
        if greeting is not None:
            assert greeting.encode() == data[:size]


@many
@given(changed_bytes([refusal("not now"), refusal("x" * 300)], [b"\xff", b"R", b"\x00"]))
def test_refusals_of_relays(data: bytes) -> None:
    reason = parse_refusal(data)
    assert reason is None or len(reason) <= 255


TENSORS = [
    encode_tensor(np.ones((1, 4), np.float32)).SerializeToString(),
    agent_pb2.Tensor(dtype="bool", shape=[2**62, 0, 4]).SerializeToString(),
    agent_pb2.Tensor(dtype="int64", shape=[-1, 3], data=b"x").SerializeToString(),
    agent_pb2.Tensor(dtype="uint8", shape=[1] * 17, data=b"x").SerializeToString(),
]


@many
@given(changed_bytes(TENSORS, [*PROTOBUF, b"\x0a\x06object", b"\x0a\x03str", b"\x12\x0a" + b"\xff" * 9 + b"\x01"]))
def test_tensors(data: bytes) -> None:
    with at_most(2), contextlib.suppress(DecodeError, InvalidInputError):
        array = decode_tensor(agent_pb2.Tensor.FromString(data))
        assert array.nbytes <= len(data)


def _requests() -> list[bytes]:
    raw = pb.ModelInferRequest(model_name="m", raw_input_contents=[struct.pack("<4f", 1, 2, 3, 4)])
    raw.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    typed = pb.ModelInferRequest(model_name="m")
    typed.inputs.add(name="x", datatype="INT8", shape=[2]).contents.int_contents.extend([1, -128])
    typed.inputs.add(name="y", datatype="UINT64", shape=[1]).contents.uint64_contents.append(2**64 - 1)
    return [raw.SerializeToString(), typed.SerializeToString()]


@many
@given(changed_bytes(_requests(), [*PROTOBUF, b"\x12\x05BYTES", b"\x12\x04BF16", b"\x12\x04FP16", b"\x12\x04BOOL"]))
def test_tensors_of_the_inference_protocol(data: bytes) -> None:
    with at_most(4), contextlib.suppress(DecodeError, InvalidInputError):
        for tensor in inputs_of(pb.ModelInferRequest.FromString(data)).values():
            assert len(tensor.data) <= 16 * len(data)


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("authority")
    return str(make_token(folder / "tokens", open_authority(folder / "ca"), Identity("w", Role.AGENT, "edge-1")))


@many
@given(data=st.data())
def test_tokens(token: str, data: st.DataObject) -> None:
    """A damaged token is refused; one that is read says what it is for."""
    originals, pieces = [token.encode(), *seeds("token")], [b".", b"jbt1", b"=", b"-_", b"\xc3\xa9", b"A" * 4]
    text = data.draw(changed_bytes(originals, pieces)).decode("utf-8", "replace")
    with contextlib.suppress(AgentError):
        found = parse_token(text)
        assert found.identity.role is Role.AGENT
        assert parse_token(str(found)) == found


@many
@given(
    changed_bytes(
        [Identity("flow", Role.CLIENT, "Zoë/1").uri.encode(), Identity("a/b", Role.GATEWAY).uri.encode()],
        [b"/", b"%", b"%2F", b"%00", b"%FF", b"jellybean://", b"agent", b"?", b"#"],
    )
)
def test_identities_in_certificates(data: bytes) -> None:
    """An identity that is read has one form only: no second URI stands for the same caller."""
    identity = parse_identity(data.decode("utf-8", "replace"))
    if identity is not None:
        assert parse_identity(identity.uri) == identity
        assert identity.name or identity.role is Role.GATEWAY


def test_no_seed_is_forgotten() -> None:
    """Each folder of kept inputs is that of a front which reads it."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    folders = {path.name for path in (Path(__file__).parent / "seeds").iterdir()}
    assert {name for name in folders if not any(f'"{name}"' in text for text in texts)} == set()
