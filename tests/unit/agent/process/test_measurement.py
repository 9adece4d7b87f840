"""A worker that measures a variant for its profile: who may, which files are sent, and what is told."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from jellybean_agent import AgentError, ModelError, find_module_source, plan_view, steps
from jellybean_agent.errors import CrashError
from jellybean_agent.measuring.job import Job
from jellybean_agent.process.measurement import MeasurementLimits, Measurements, measurement_limits
from jellybean_agent.system.memory import machine_memory_bytes
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.simulated_time import run_in_simulated_time
from tests.support.tiny_models import make_plan

MODEL, SAMPLE, WEIGHTS = b"model" * 100, b"sample", b"weights"
MIB = 2**20


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def content_file(content: bytes, name: str = "") -> agent_pb2.ContentFile:
    return agent_pb2.ContentFile(name=name, sha256=sha256(content), size=len(content))


def subject(**content: Any) -> agent_pb2.Subject:
    standard: dict[str, Any] = {
        "name": "double/only",
        "sha256": "ab",
        "files": [content_file(MODEL), content_file(WEIGHTS, "data/weights.bin")],
        "sample": content_file(SAMPLE),
        "device": "cpu",
        "points": [agent_pb2.TimedPoint(batch=2, seconds=0.5, blocks=[0, 1])],
        "inputs": [agent_pb2.InputEdge(upstream="x", port="input")],
    }
    return agent_pb2.Subject(**{**standard, **content})


class Aborted(Exception):
    """A call that was ended with a status."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(f"{status.name}: {reason}")


class Context:
    """The context of a call."""

    async def abort(self, status: grpc.StatusCode, reason: str) -> None:
        raise Aborted(status, reason)


@dataclass
class Agent:
    """A worker, and what its measuring process says. `files`: of each job, as the process finds them."""

    root: Path
    lines: list[Any] = field(default_factory=lambda: [{"batch": 2, "block": 0, "seconds": [0.5, 0.25]}])
    jobs: list[tuple[Job, float]] = field(default_factory=list)
    files: list[dict[str, bytes]] = field(default_factory=list)
    memory_bytes: int = MIB
    allowed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        operators = {"double": (["x"], sha256(b"planned"))}
        document = make_plan(self.root, operators, [(1.0, {"double": "edge-1"})], sources={"x": "edge"})
        self.service = SimpleNamespace(
            view=plan_view(document),
            worker=SimpleNamespace(name="edge-1"),
            state="ready",
            requests_in_flight=0,
            requests_handled=7,
        )
        service: Any = self.service
        limits = MeasurementLimits(60.0, self.memory_bytes)
        self.measurements = Measurements(service, self.root, self.allowed, limits, self._measure)

    async def _measure(self, job: Job, limit_s: float) -> AsyncIterator[dict[str, Any]]:
        self.jobs.append((job, limit_s))
        folder = Path(job.path).parent
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.files.append({**found, "sample": Path(job.sample).read_bytes()})
        for line in self.lines:
            if isinstance(line, AgentError):
                raise line
            if callable(line):
                line()
                continue
            yield line

    async def measure(self, what: agent_pb2.Subject, *parts: bytes, cut: int = 100) -> list[agent_pb2.MeasureResponse]:
        """The answers to a subject and to files, sent in parts of `cut` bytes."""

        async def requests() -> AsyncIterator[agent_pb2.MeasureRequest]:
            yield agent_pb2.MeasureRequest(subject=what)
            for content in parts:
                for at in range(0, len(content), cut):
                    part = agent_pb2.FilePart(sha256=sha256(content), data=content[at : at + cut])
                    yield agent_pb2.MeasureRequest(file=part)

        return [response async for response in self.measurements.Measure(requests(), Context())]


def with_agent(folder: Path, test: Callable[[Agent], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        agent = Agent(folder, **settings)
        try:
            await test(agent)
        finally:
            agent.measurements.close()

    asyncio.run(run())


def test_files_are_sent_once_and_the_lines_are_handed_on(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        agent.lines.append({"memory_bytes": 4096.0, "device_memory_bytes": None})
        agent.lines.append({"memory_bytes": 4096.0, "device_memory_bytes": 5.0})
        accepted, timed, memory, both = await agent.measure(subject(memory=True), MODEL, WEIGHTS, SAMPLE)
        assert [(file.sha256, file.offset) for file in accepted.accepted.lacking] == [
            (sha256(content), 0) for content in (MODEL, WEIGHTS, SAMPLE)
        ]
        assert accepted.accepted.machine.cores > 0
        assert (timed.timed.batch, timed.timed.block, list(timed.timed.seconds)) == (2, 0, [0.5, 0.25])
        assert (memory.memory_bytes, memory.HasField("device_memory_bytes")) == (4096.0, False)
        assert both.device_memory_bytes == 5.0
        assert timed.served == 0
        ((job, limit_s),) = agent.jobs
        assert limit_s == 300.0 + 0.5 + 4 * 60.0
        assert agent.files == [{"model.onnx": MODEL, "data/weights.bin": WEIGHTS, "sample": SAMPLE}]
        assert (job.sha256, job.upstreams, job.points) == ("ab", {"x": "input"}, ((2, 0.5, (0, 1)),))
        assert (job.memory, job.memory_bytes, job.device) == (True, MIB, ("cpu", ()))
        again = await agent.measure(subject(), MODEL, WEIGHTS)
        assert [file.sha256 for file in again[0].accepted.lacking] == [sha256(MODEL), sha256(WEIGHTS)], (
            "only the sample is kept"
        )

    with_agent(tmp_path, test)


def test_an_interrupted_file_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        what = subject(files=[content_file(MODEL)])
        with pytest.raises(Aborted, match="INVALID_ARGUMENT: the caller ended before it had sent what is measured"):
            await agent.measure(what, MODEL[:0], cut=200)
        first = [agent_pb2.MeasureRequest(subject=what)]
        first.append(agent_pb2.MeasureRequest(file=agent_pb2.FilePart(sha256=sha256(MODEL), data=MODEL[:200])))

        async def requests() -> AsyncIterator[agent_pb2.MeasureRequest]:
            for request in first:
                yield request

        with pytest.raises(Aborted):
            async for _ in agent.measurements.Measure(requests(), Context()):
                pass
        parts = [agent_pb2.FilePart(sha256=sha256(MODEL), data=MODEL[200:])]
        parts.append(agent_pb2.FilePart(sha256=sha256(SAMPLE), data=SAMPLE))

        async def rest() -> AsyncIterator[agent_pb2.MeasureRequest]:
            yield first[0]
            for part in parts:
                yield agent_pb2.MeasureRequest(file=part)

        answers = [answer async for answer in agent.measurements.Measure(rest(), Context())]
        assert [file.offset for file in answers[0].accepted.lacking] == [200, 0]
        assert agent.files[-1]["model.onnx"] == MODEL

    with_agent(tmp_path, test)


def test_models_of_the_plan_that_is_served_need_not_be_sent(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        (tmp_path / "models").mkdir()
        for content, is_here in ((b"planned", True), (b"altered", False)):
            (tmp_path / "models/double.onnx").write_bytes(content)
            what = subject(files=[content_file(b"planned")])
            sent = (SAMPLE,) if is_here else (b"planned",)
            answers = await agent.measure(what, *sent)
            lacking = [file.sha256 for file in answers[0].accepted.lacking]
            assert (sha256(b"planned") not in lacking) == is_here
            assert agent.files[-1]["model.onnx"] == b"planned"

    with_agent(tmp_path, test)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((WEIGHTS,), "parts of files came in another order, or more than was announced"),
        ((MODEL + b"x",), "parts of files came in another order"),
        ((SAMPLE,), "parts of files came in another order"),
    ],
)
def test_files_that_are_not_as_announced_are_refused(tmp_path: Path, parts: tuple[bytes, ...], reason: str) -> None:
    async def test(agent: Agent) -> None:
        with pytest.raises(Aborted, match=f"INVALID_ARGUMENT: {reason}"):
            await agent.measure(subject(), *parts)
        assert agent.jobs == []

    with_agent(tmp_path, test)


def test_a_file_of_other_content_is_refused(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        async def requests() -> AsyncIterator[agent_pb2.MeasureRequest]:
            yield agent_pb2.MeasureRequest(subject=subject())
            data = MODEL[::-1]
            yield agent_pb2.MeasureRequest(file=agent_pb2.FilePart(sha256=sha256(MODEL), data=data))

        with pytest.raises(Aborted, match=r"INVALID_ARGUMENT: a file came with sha256"):
            async for _ in agent.measurements.Measure(requests(), Context()):
                pass

    with_agent(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"state": "loading"}, "UNAVAILABLE", "edge-1 is loading"),
        ({"requests_in_flight": 2}, "FAILED_PRECONDITION", "edge-1 has 2 requests in flight, which spoils the times"),
    ],
)
def test_a_worker_that_serves_refuses(tmp_path: Path, change: dict[str, Any], status: str, reason: str) -> None:
    async def test(agent: Agent) -> None:
        vars(agent.service).update(change)
        with pytest.raises(Aborted, match=f"{status}: {reason}"):
            await agent.measure(subject(), MODEL, WEIGHTS, SAMPLE)
        if "state" not in change:
            answers = await agent.measure(subject(force=True), MODEL, WEIGHTS, SAMPLE)
            assert len(answers) == 2

    with_agent(tmp_path, test)


@pytest.mark.parametrize("force", [False, True])
def test_requests_that_come_meanwhile_end_a_measurement_or_are_told(tmp_path: Path, force: bool) -> None:
    async def test(agent: Agent) -> None:
        line = agent.lines[0]
        agent.lines = [line, lambda: setattr(agent.service, "requests_handled", 10), line]
        if force:
            answers = await agent.measure(subject(force=True), MODEL, WEIGHTS, SAMPLE)
            assert [answer.served for answer in answers] == [0, 0, 3]
        else:
            with pytest.raises(Aborted, match="edge-1 was sent 3 requests while it measured double/only"):
                await agent.measure(subject(), MODEL, WEIGHTS, SAMPLE)

    with_agent(tmp_path, test)


def test_files_that_are_too_big_are_refused_before_they_are_sent(tmp_path: Path) -> None:
    async def test(agent: Agent) -> None:
        big = agent_pb2.ContentFile(sha256="0" * 64, size=MIB + 1)
        reason = "double/only is too big for edge-1: its files have 1 MiB, edge-1 has 1 MiB of memory for a model"
        with pytest.raises(Aborted, match=re.escape(f"RESOURCE_EXHAUSTED: {reason}")):
            await agent.measure(subject(files=[big]))
        sample = agent_pb2.ContentFile(sha256="1" * 64, size=2**60)
        with pytest.raises(Aborted, match=r"RESOURCE_EXHAUSTED: .* left on the disk of "):
            await agent.measure(subject(sample=sample))

    with_agent(tmp_path, test)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ModelError("no such input"), "FAILED_PRECONDITION", "double/only: no such input"),
        (CrashError("the model crashed"), "INTERNAL", "the model crashed"),
    ],
)
def test_a_model_that_fails(tmp_path: Path, error: AgentError, status: str, reason: str) -> None:
    async def test(agent: Agent) -> None:
        agent.lines = [error]
        with pytest.raises(Aborted, match=f"^{status}: {reason}$"):
            await agent.measure(subject(), MODEL, WEIGHTS, SAMPLE)
        agent.lines = []
        await agent.measure(subject(), MODEL, WEIGHTS, SAMPLE)
        assert len(agent.jobs) == 2, "the next one has its turn"

    with_agent(tmp_path, test)


def test_functions_must_be_allowed_and_installed_as_planned(tmp_path: Path) -> None:
    function = f"{steps.__name__}:cast"

    async def test(agent: Agent) -> None:
        right = find_module_source(steps.__name__).sha256
        what = {"files": [], "function": function, "arguments": '{"to": "int64"}'}
        await agent.measure(subject(sha256=right, **what), SAMPLE)
        job = agent.jobs[0][0]
        assert (job.function, job.arguments) == (function, '{"to": "int64"}')
        with pytest.raises(Aborted, match="FAILED_PRECONDITION: "):
            await agent.measure(subject(sha256="0" * 64, **what), SAMPLE)
        with pytest.raises(Aborted, match="FAILED_PRECONDITION: "):
            await agent.measure(subject(sha256=right, **{**what, "function": "os:getpid"}), SAMPLE)
        assert len(agent.jobs) == 1

    with_agent(tmp_path, test)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"device": "abacus"}, "'abacus' is no device"),
        ({"files": [agent_pb2.ContentFile(sha256="x")]}, "'x' is no sha256"),
        ({"files": [content_file(MODEL), content_file(WEIGHTS, "../outside")]}, "outside its folder"),
    ],
)
def test_subjects_that_are_wrong(tmp_path: Path, content: dict[str, Any], reason: str) -> None:
    async def test(agent: Agent) -> None:
        with pytest.raises(Aborted, match=reason):
            await agent.measure(subject(**content), MODEL, WEIGHTS, SAMPLE)

    with_agent(tmp_path, test)


def test_one_measurement_at_a_time(tmp_path: Path) -> None:
    async def run() -> None:
        agent = Agent(tmp_path)
        go_on = asyncio.Event()

        async def requests() -> AsyncIterator[agent_pb2.MeasureRequest]:
            yield agent_pb2.MeasureRequest(subject=subject())
            await go_on.wait()

        loop = asyncio.get_running_loop()
        first = agent.measurements.Measure(requests(), Context())
        await anext(first)
        began_s = loop.time()
        with pytest.raises(Aborted, match="FAILED_PRECONDITION: edge-1 is measuring for another caller"):
            await agent.measure(subject())
        assert loop.time() - began_s >= 5.0
        waiting = asyncio.create_task(agent.measure(subject()))
        await asyncio.sleep(1.0)
        go_on.set()
        with pytest.raises(Aborted, match="INVALID_ARGUMENT"):
            await anext(first)
        with pytest.raises(Aborted, match="INVALID_ARGUMENT"):
            await waiting
        late = agent.measurements.Measure(_silent(), Context())
        await anext(late)
        began_s = loop.time()
        with pytest.raises(Aborted, match="DEADLINE_EXCEEDED: no more came in 60 s"):
            await anext(late)
        assert loop.time() - began_s >= 60.0
        agent.measurements.close()

    run_in_simulated_time(run)


async def _silent() -> AsyncIterator[agent_pb2.MeasureRequest]:
    yield agent_pb2.MeasureRequest(subject=subject())
    await asyncio.sleep(3600.0)


def test_the_limits_of_models_apply() -> None:
    assert measurement_limits(5.0, 3) == MeasurementLimits(5.0, 3 * MIB)
    assert measurement_limits(5.0, None) == MeasurementLimits(5.0, machine_memory_bytes() // 2)
