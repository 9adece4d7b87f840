"""The driver's thread outlives whatever a run does to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import numpy as np

from jellybean_agent.driver import Driver
from jellybean_agent.executor import Executor, Input, RunResult
from jellybean_agent.inboxes import Inboxes
from jellybean_agent.links import EmulatedLinks
from jellybean_agent.messages import GATEWAY
from jellybean_agent.peers import Peer
from jellybean_agent.plan_view import plan_view
from jellybean_agent.tensors import decode, encode
from jellybean_protos.agent.v1 import agent_pb2

sys.path.insert(0, str(Path(__file__).parents[2] / "integration/serving"))
from serving_models import make_plan, scale


class FailsOnce(Executor):
    """A real executor whose first run meets a fault that nobody foresaw."""

    runs = 0

    def run(self, inputs: Sequence[Input]) -> RunResult:
        self.runs += 1
        if self.runs == 1:
            raise ZeroDivisionError("a fault nobody foresaw")
        return super().run(inputs)


def test_an_unforeseen_fault_fails_its_request_only(tmp_path: Path) -> None:
    sha256 = scale(tmp_path / "models/double.onnx", 2.0)
    route = {"double": "edge-1"}
    view = plan_view(make_plan(tmp_path, {"double": (["x"], sha256)}, [(1.0, route)], sources={"x": "edge"}))

    async def both() -> list[agent_pb2.Message]:
        answers: asyncio.Queue[agent_pb2.Message] = asyncio.Queue()
        inboxes = Inboxes(answers.put_nowait, lambda: False)
        deliver = grpc.stream_stream_rpc_method_handler(
            inboxes.deliver, agent_pb2.Message.FromString, agent_pb2.Credit.SerializeToString
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": deliver}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        gateway = Peer(GATEWAY, f"127.0.0.1:{port}", sender="edge-1", on_lost=lambda *_: None)
        executor = FailsOnce(tmp_path / "models/double.onnx", sha256, ("x",))
        with EmulatedLinks(view.links, tmp_path / "links") as links:
            driver = Driver(view, "edge-1", {"double": executor}, {GATEWAY: gateway}, links)
            for request in "ab":
                tensor = encode(np.ones((1, 4), np.float32))
                wire = agent_pb2.Message(request_id=request, upstream="x", downstream="double", tensor=tensor)
                wire.plan = view.hash
                driver.receive(wire)
            found = [await asyncio.wait_for(answers.get(), 20) for _ in "ab"]
            assert driver.figures.failed == driver.figures.completed == {"double": 1}
            await asyncio.to_thread(driver.stop)
        await gateway.close()
        await server.stop(0)
        return found

    found = {message.request_id: message for message in asyncio.run(both())}
    assert found["a"].failure.operator == "double"
    assert "ZeroDivisionError('a fault nobody foresaw')" in found["a"].failure.reason
    assert decode(found["b"].tensor).tolist() == [[2, 2, 2, 2]]
