"""The agent's service in simulated time: loading, describing, delivering, losing peers, states and drains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from jellybean_agent import (
    DELIVER_METHOD,
    GATEWAY,
    EmulatedLinks,
    Inboxes,
    OpenPolicy,
    Peer,
    PeerSettings,
    ReplyAddress,
    Transport,
    agent_service_handler,
    decode_tensor,
    encode_tensor,
    make_server,
    plan_view,
)
from jellybean_agent.process.agent_service import AgentService
from jellybean_agent.process.model_loading import ModelSettings
from jellybean_agent.rpc.frames import END_STREAM
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver.model.plan_document import Document
from tests.support.http2_client import Http2Client, content, settle, unary_call
from tests.support.simulated_time import run_in_simulated_time
from tests.support.tiny_models import make_plan
from tests.unit.agent.worker.timed_worker import RUN_S, TimedSession

PLAIN = Transport("tiny", insecure=True)
HASH = "0" * 64


class TimedModels:
    """Stands where the model process is: its models run in the loop's time. `is_closed`: it was told to end."""

    def __init__(self, states: dict[str, dict[str, str]]) -> None:
        self.sessions: dict[str, TimedSession] = {}
        self.is_closed = False
        self._states = states

    def open(self, code: Any, _sha256: str, _device: Any) -> TimedSession:
        name = Path(str(code)).stem
        self.sessions[name] = TimedSession(("x" if name == "add" else "add",), self._states.get(name, {}))
        return self.sessions[name]

    def close(self) -> None:
        self.is_closed = True


class Gateway:
    """A gateway's inbox, and its stream to the agent."""

    def __init__(self, folder: Path, name: str) -> None:
        self.address = f"unix:{folder}/{name}"
        self.got: list[agent_pb2.Message] = []
        self.lost: list[tuple[str, list[str]]] = []
        self.peer: Peer | None = None

    async def start(self) -> None:
        inboxes = Inboxes(lambda message, _: self.got.append(message), lambda _: False)
        self._server = make_server(OpenPolicy())
        self._server.add_generic_rpc_handlers((agent_service_handler(),))
        self._server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        PLAIN.bind(self._server, self.address)
        await self._server.start()

    def connect(self, agent: str, reply: ReplyAddress | None = None) -> Peer:
        """Open a stream to the agent."""

        def note(_name: str, reason: str, messages: Sequence[agent_pb2.Message]) -> None:
            self.lost.append((reason, [message.request_id for message in messages]))

        settings = PeerSettings(GATEWAY, PLAIN, eager=True, reply=reply)
        self.peer = Peer("edge-1", agent, settings, on_lost=note).start()
        return self.peer

    async def stop(self) -> None:
        if self.peer is not None:
            await self.peer.close()
        await self._server.stop(0.0)

    @property
    def answers(self) -> dict[str, float]:
        return {
            found.request_id: float(decode_tensor(found.tensor)[0, 0])
            for found in self.got
            if not found.HasField("failure")
        }

    @property
    def failures(self) -> dict[str, agent_pb2.Failure]:
        return {found.request_id: found.failure for found in self.got if found.HasField("failure")}


class Agent:
    """An agent's service behind a server, and its gateway."""

    def __init__(self, document: Document, folder: Path, states: dict[str, dict[str, str]]) -> None:
        self.view = plan_view(document)
        self.models = TimedModels(states)
        self.gateway, self.folder = Gateway(folder, "gateway"), folder
        self.address = f"unix:{folder}/edge-1"
        addresses = {GATEWAY: self.gateway.address, "edge-1": self.address, "cloud-1": f"unix:{folder}/cloud-1"}
        self.links = EmulatedLinks(self.view.links, folder / "links").open()
        models: Any = self.models
        self.service = AgentService(
            self.view, self.view.workers["edge-1"], addresses, self.links, PLAIN, ModelSettings(folder, models)
        )
        self.server = make_server(OpenPolicy())
        self.server.add_generic_rpc_handlers((self.service.handler(),))
        self.server.add_raw_stream(DELIVER_METHOD, self.service.deliver_raw)
        PLAIN.bind(self.server, self.address)
        self._numbers = iter(range(1, 999, 2))
        self._client: Http2Client | None = None

    async def start(self) -> None:
        await self.gateway.start()
        await self.server.start()

    async def stop(self) -> None:
        await self.gateway.stop()
        await self.server.stop(0.0)
        await self.service.close()
        self.links.close()

    async def call(self, name: str, request: Any, response: Any) -> Any:
        """A response of the service, or (number of the status, reason)."""
        if self._client is None:
            self._client = Http2Client(self.server.open_port())
            await self._client.greet()
        number = next(self._numbers)
        data = unary_call(number, request.SerializeToString(), f"/jellybean.agent.v1.Agent/{name}")
        answers = await self._client.send(data)
        while not any(one.flags & END_STREAM and one.number == number for one in answers):  # the handler still runs
            answers += await self._client.frames()
        status = self._client.status(answers, number)
        return status if status[0] else response.FromString(content(answers, number)[5:])

    async def describe(self) -> agent_pb2.AgentStatus:
        found: agent_pb2.AgentStatus = await self.call("Describe", agent_pb2.DescribeRequest(), agent_pb2.AgentStatus)
        return found

    async def health(self) -> int:
        request = health_pb2.HealthCheckRequest(service="")
        return int((await self.service.health.Check(request, None)).status)

    def message(self, request: str, value: float, **more: Any) -> agent_pb2.Message:
        tensor = encode_tensor(np.full((1, 2), value, np.float32))
        return agent_pb2.Message(
            request_id=request, upstream="x", downstream="add", tensor=tensor, plan=self.view.hash, **more
        )


def with_agent(
    folder: Path,
    test: Callable[[Agent], Awaitable[None]],
    *,
    last: str = "",
    states: dict[str, dict[str, str]] | None = None,
) -> None:
    """Run a test with an agent that adds one. `last`: the worker of an operator that follows, if there is one."""
    operators = {"add": (["x"], HASH), **({"last": (["add"], HASH)} if last else {})}
    route = {"add": "edge-1", **({"last": last} if last else {})}
    given = {name: tuple(state.items()) for name, state in (states or {}).items()}
    document = make_plan(folder, operators, [(1.0, route)], sources={"x": "edge"}, states=given)

    async def run() -> None:
        agent = Agent(document, folder, states or {})
        await agent.start()
        try:
            await test(agent)
        finally:
            await agent.stop()

    folder.chmod(0o700)
    run_in_simulated_time(run)


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_an_agent_takes_messages_once_its_models_are_loaded(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        peer = agent.gateway.connect(agent.address)
        peer.put(agent.message("early", 1))
        await asyncio.sleep(0.05)
        assert agent.gateway.lost[0] == ("edge-1 is loading its models", ["early"])
        about = await agent.describe()
        assert (about.worker, about.plan, about.state) == ("edge-1", agent.view.hash, "loading")
        assert (agent.service.requests_in_flight, agent.service.requests_handled) == (0, 0)
        assert not about.signatures
        await agent.service.load()
        assert (about.protocol, about.several_gateways) == (PROTOCOL_VERSION, True)
        assert await agent.health() == SERVING
        await asyncio.sleep(0.2)
        peer.put(agent.message("r0", 1))
        peer.put(agent.message("r1", 5))
        await asyncio.sleep(1.5 * RUN_S)
        assert agent.gateway.answers == {"r0": 2.0}
        about = await agent.describe()
        assert (about.state, about.requests_in_hand, dict(about.completed), dict(about.runs)) == (
            "ready",
            1,
            {"add": 1},
            {"add": 1},
        )
        assert about.busy_s["add"] > 0.4
        assert (agent.service.requests_in_flight, agent.service.requests_handled) == (1, 2)
        signature = about.signatures["add"]
        assert {name: list(spec.shape) for name, spec in signature.inputs.items()} == {"x": [-1, 2]}
        assert {name: spec.dtype for name, spec in signature.outputs.items()} == {"": "float32"}
        await asyncio.sleep(1.5 * RUN_S)
        assert agent.gateway.answers == {"r0": 2.0, "r1": 6.0}
        text = (await agent.call("Metrics", agent_pb2.MetricsRequest(), agent_pb2.MetricsResponse)).text
        assert b'jellybean_requests_total{operator="add",variant="only",worker="edge-1"} 2.0' in bytes(text)

    with_agent(tmp_path, test)


def test_expired_requests_are_described(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        peer = agent.gateway.connect(agent.address)
        peer.put(agent.message("r0", 1))
        peer.put(agent.message("late", 1), until_s=asyncio.get_running_loop().time() + 0.5)
        await asyncio.sleep(3.0)
        assert agent.gateway.answers == {"r0": 2.0}
        assert (await agent.describe()).expired == 1

    with_agent(tmp_path, test)


def test_a_worker_that_is_lost_fails_the_requests_that_were_sent_to_it(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        agent.gateway.connect(agent.address).put(agent.message("r0", 1))
        await asyncio.sleep(1.2)
        (failure,) = agent.gateway.failures.values()
        assert failure.reason.startswith("worker cloud-1 cannot be reached: cannot connect to ")
        assert (failure.worker, failure.operator) == ("cloud-1", "last")
        assert failure.status == grpc.StatusCode.UNAVAILABLE.value[0]
        assert agent.service.requests_in_flight == 0

    with_agent(tmp_path, test, last="cloud-1")


def test_a_request_goes_on_to_the_next_worker(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        cloud = Gateway(tmp_path, "cloud-1")
        await cloud.start()
        await agent.service.load()
        agent.gateway.connect(agent.address).put(agent.message("r0", 1))
        await asyncio.sleep(1.2)
        assert cloud.answers == {"r0": 2.0}
        assert cloud.got[0].downstream == "last"
        assert agent.gateway.got == []
        await cloud.stop()

    with_agent(tmp_path, test, last="cloud-1")


def test_each_of_several_gateways_gets_its_answers_while_it_has_a_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jellybean.agent")

    async def test(agent: Agent) -> None:
        await agent.service.load()
        second = Gateway(tmp_path, "second")
        await second.start()
        reply = ReplyAddress.of(second.address, PLAIN)
        agent.gateway.connect(agent.address).put(agent.message("r0", 1))
        peer = second.connect(agent.address, reply)
        peer.put(agent.message(f"{reply.request_prefix}r1", 2))
        await asyncio.sleep(2.2 * RUN_S)
        assert agent.gateway.answers == {"r0": 2.0}
        assert second.answers == {f"{reply.request_prefix}r1": 3.0}
        peer.put(agent.message(f"{reply.request_prefix}r2", 2, left_s=60.0))
        await asyncio.sleep(0.5 * RUN_S)
        await second.stop()
        await asyncio.sleep(9.0)
        gone = f"the gateway at {second.address} is gone"
        assert not any(gone in line for line in caplog.messages)
        await asyncio.sleep(21.0)
        assert sum(gone in line for line in caplog.messages) == 1
        assert list(second.answers) == [f"{reply.request_prefix}r1"]
        about = await agent.describe()
        assert (about.requests_in_hand, about.completed["add"]) == (0, 3)
        assert agent.gateway.answers == {"r0": 2.0}

    with_agent(tmp_path, test)


def test_a_gateway_that_may_not_say_where_answers_go_is_refused(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        agent.gateway.connect(agent.address, ReplyAddress("no key", agent.gateway.address))
        await asyncio.sleep(0.05)
        assert agent.gateway.lost[0][0] == "'no key' is no key of a gateway: 8 hexadecimal digits"

    with_agent(tmp_path, test)


def test_a_drain_waits_for_the_gateways_stream_to_end(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        peer = agent.gateway.connect(agent.address)
        peer.put(agent.message("r0", 1))
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(agent.service.drain(60.0))
        await asyncio.sleep(0.1)
        assert ((await agent.describe()).state, await agent.health()) == ("draining", NOT_SERVING)
        await asyncio.sleep(5.0)
        assert agent.gateway.answers == {"r0": 2.0}
        assert not draining.done()
        peer.end()
        await asyncio.sleep(0.1)
        assert await draining == 0

    with_agent(tmp_path, test)


def test_a_drain_that_takes_too_long_says_what_is_left(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        before = await agent.call("Drain", agent_pb2.DrainRequest(timeout_s=0.0), agent_pb2.DrainResponse)
        assert before.left == 0
        await agent.service.load()
        peer = agent.gateway.connect(agent.address)
        for number in range(5):
            peer.put(agent.message(f"r{number}", 1))
        await asyncio.sleep(0.1)
        now = await agent.call("Drain", agent_pb2.DrainRequest(timeout_s=0.0), agent_pb2.DrainResponse)
        assert now.left == 5
        began_s = asyncio.get_running_loop().time()
        assert await agent.service.drain(2.0) == 3
        assert 1.9 < asyncio.get_running_loop().time() - began_s < 2.1

    with_agent(tmp_path, test)


def test_direct_calls_hold_a_drain_up(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        driver = agent.service.driver
        assert driver is not None
        calling = asyncio.create_task(driver.call_operator("add", [np.zeros((1, 2), np.float32)], None))
        await settle()
        draining = asyncio.create_task(agent.service.drain(60.0))
        await asyncio.sleep(0.9)
        assert not draining.done()
        await calling
        await asyncio.sleep(0.1)
        assert draining.done()

    with_agent(tmp_path, test)


STATES = {"add": {"before": "after"}}


def state_request(agent: Agent, **content: Any) -> agent_pb2.StreamState:
    return agent_pb2.StreamState(**{"operator": "add", "stream": "s", "plan": agent.view.hash, **content})


def test_states_are_read_and_written_where_they_are_kept(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        async def read(**content: Any) -> Any:
            return await agent.call("ReadState", state_request(agent, **content), agent_pb2.StreamState)

        async def write(*values: float, **content: Any) -> Any:
            request = state_request(agent, **content)
            request.tensors.extend(encode_tensor(np.full((1, 2), value, np.float32)) for value in values)
            return await agent.call("WriteState", request, agent_pb2.StreamState)

        aborted, refused = grpc.StatusCode.ABORTED.value[0], grpc.StatusCode.FAILED_PRECONDITION.value[0]
        assert await read() == (aborted, "edge-1 does not run add yet")
        await agent.service.load()
        assert [decode_tensor(tensor).tolist() for tensor in (await read()).tensors] == [[[0.0, 0.0]]]
        assert (await read(after="r0"))[0] == aborted
        assert await write(3.0, after="r0") == agent_pb2.StreamState()
        assert decode_tensor((await read(after="r0")).tensors[0]).tolist() == [[3.0, 3.0]]
        assert (await write(3.0, 4.0, after="r0"))[0] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert await read(plan="f" * 64) == (refused, "'add' of plan ffffffffffff keeps no state here")
        assert (await write(1.0, operator="other"))[0] == refused
        peer = agent.gateway.connect(agent.address)
        peer.put(agent.message("r1", 2, stream="s", after="r0"))
        await asyncio.sleep(1.2)
        assert agent.gateway.answers == {"r1": 3.0}
        assert decode_tensor((await read(after="r1")).tensors[0]).tolist() == [[5.0, 5.0]]
        peer.put(agent.message("r2", 2, stream="s", after="elsewhere"))
        await asyncio.sleep(1.2)
        assert agent.gateway.failures["r2"].status == aborted
        about = await agent.describe()
        assert list(about.signatures["add"].inputs) == ["x"], "states are no edges"

    with_agent(tmp_path, test, states=STATES)


def test_the_end_of_an_agent_fails_direct_calls_and_ends_its_model_process(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        driver = agent.service.driver
        assert driver is not None
        answers: list[Any] = []
        driver.begin_call("add", [np.zeros((1, 2), np.float32)], answers.append)
        await agent.service.close()
        assert [str(answer) for answer in answers] == ["worker edge-1 is shutting down"]
        assert agent.models.is_closed

    with_agent(tmp_path, test)


def test_a_full_worker_grants_no_credit(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        await agent.service.load()
        peer = agent.gateway.connect(agent.address)
        for number in range(200):
            peer.put(agent.message(f"r{number}", number))
        await asyncio.sleep(0.5)
        assert 64 < agent.service.requests_in_flight <= 64 + 64
        assert peer.queued > 60
        await asyncio.sleep(40.0)
        assert 64 <= agent.service.requests_in_flight + len(agent.gateway.answers) <= 200
        await asyncio.sleep(180.0)
        assert agent.gateway.answers == {f"r{number}": number + 1.0 for number in range(200)}

    with_agent(tmp_path, test)
