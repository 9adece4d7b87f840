"""Spans of requests that share a run, which a plan under real load gives no way to force."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jellybean_agent import GATEWAY, EmulatedLinks, SpanFactory, StreamSource, decode_tensor, encode_tensor
from jellybean_agent.telemetry import spans as spans_module
from jellybean_agent.transport.message_wire import message_parts
from jellybean_agent.worker.driver import Driver
from jellybean_agent.worker.span_tracer import SpanTracer
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import scale
from tests.unit.agent.worker.one_operator import Gated, view_of


class Answers:
    """What a driver sends to the gateway."""

    expired = 0

    def __init__(self) -> None:
        self.messages: list[agent_pb2.Message] = []

    def put(
        self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = 0.0, data: bytes | memoryview = b""
    ) -> None:
        self.messages.append(agent_pb2.Message.FromString(b"".join(message_parts(message, data))))

    def expire(self, now_s: float) -> None:
        pass


def test_each_request_of_a_batch_has_its_own_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = InMemorySpanExporter()
    monkeypatch.setattr(spans_module, "_exporter", lambda environment: exported)
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    view = view_of(tmp_path, sha256, 4)
    answers, spans = Answers(), SpanFactory("jellybean-agent", "edge-1", "tiny", {}).start()

    async def run() -> None:
        executor = Gated(tmp_path / "models/double.onnx", sha256, ("x",), batch=4)
        with EmulatedLinks(view.links, tmp_path / "links") as links:
            driver = Driver(
                view, "edge-1", {"double": executor}, {GATEWAY: answers}, links, SpanTracer(spans, view, "edge-1")
            )
            driver.start()
            for number in range(4):  # the first runs alone, the last is not traced
                tensor = encode_tensor(np.full((1, 4), number, np.float32))
                wire = agent_pb2.Message(
                    request_id=str(number), upstream="x", downstream="double", tensor=tensor, plan=view.hash
                )
                if number < 3:
                    wire.trace.parent = f"00-{number + 1:032x}-{1:016x}-01"
                driver.receive(wire, StreamSource(GATEWAY))
                await asyncio.sleep(0)  # each comes in a turn of the loop of its own
            executor.gate.set()
            while len(answers.messages) < 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(driver.stop)

    asyncio.run(asyncio.wait_for(run(), 20))
    spans.close()
    assert [decode_tensor(message.tensor)[0, 0] for message in answers.messages] == [0, 2, 4, 6]
    found = exported.get_finished_spans()
    assert sorted(span.name for span in found) == sorted(["hop", "queue", "compute"] * 3)
    for number, size in ((0, 1), (1, 3), (2, 3)):
        own = {span.name: span for span in found if span.context.trace_id == number + 1}
        assert own["queue"].parent.span_id == own["compute"].parent.span_id == own["hop"].context.span_id
        assert own["compute"].attributes["jellybean.batch_size"] == size
        assert own["queue"].end_time == own["compute"].start_time
        assert answers.messages[number].trace.parent.split("-")[2] == f"{own['compute'].context.span_id:016x}"
    assert not answers.messages[3].HasField("trace")
