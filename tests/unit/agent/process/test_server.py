"""An agent's life in this process: from its options to ready, over its ports, to a drain; and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from jellybean_agent import (
    PlanViewError,
    StatusError,
    Transport,
    UnixSocketClient,
    UnixSocketRpcUnsupportedError,
    protocol_metadata,
    read_peer_addresses,
    serve_health,
)
from jellybean_agent.__main__ import main
from jellybean_agent.errors import TransientError
from jellybean_agent.execution.process_pool import POOL_DIED
from jellybean_agent.process.server import Options, serve
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.ports import free_port
from tests.support.tiny_models import make_plan, scale
from tests.support.waiting import wait_until

# Connections that are open at the end close with the process, which does not end here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """An agent sets the root logger up and freezes what it has loaded."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    gc.unfreeze()


def run_folder(folder: Path, **changes: Any) -> Path:
    """A folder with a plan of one model, and the file of addresses."""
    folder.chmod(0o700)
    sha256 = scale(folder / "models/double.onnx", 2.0)
    plan = make_plan(folder, {"double": (["x"], sha256)}, [(1.0, {"double": "edge-1"})], sources={"x": "edge"})
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    peers = {"": f"unix:{folder}/gateway", "edge-1": f"unix:{folder}/edge-1", **changes}
    (folder / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    return folder


class Caller:
    """A client on the agent's socket."""

    def __init__(self, folder: Path) -> None:
        self._client = UnixSocketClient(f"{folder}/edge-1", dict(protocol_metadata()))

    def is_ready(self) -> bool:
        try:
            status = self._client.call("/jellybean.agent.v1.Agent/Describe", b"", 10.0)
        except (StatusError, UnixSocketRpcUnsupportedError):
            return False
        return agent_pb2.AgentStatus.FromString(status).state == "ready"

    def infer(self, value: float) -> float:
        request = pb.ModelInferRequest(model_name="double")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        request.inputs[0].contents.fp32_contents.extend([value] * 4)
        data = self._client.call("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString(), 10.0)
        (raw,) = pb.ModelInferResponse.FromString(data).raw_output_contents
        return float(memoryview(raw).cast("f")[0])

    def health(self, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        answer = self._client.call("/grpc.health.v1.Health/Check", request, 10.0)
        return int(health_pb2.HealthCheckResponse.FromString(answer).status)

    def close(self) -> None:
        self._client.close()


def listed(folder: Path) -> set[str]:
    """The services that reflection lists."""
    with grpc.insecure_channel(f"unix:{folder}/edge-1") as channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_an_agent_serves_its_model_its_health_and_its_metrics_until_it_drains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder, metrics, health = run_folder(tmp_path), free_port(), free_port()
    options = Options(
        plan=folder / "plan.json",
        worker="edge-1",
        root=folder,
        listen=f"unix:{folder}/edge-1",
        peers=folder / "peers.json",
        metrics_port=metrics,
        health_port=health,
        drain_s=0.1,
        counters=folder / "counters",
        in_process=True,
    )

    async def checked(address: str, service: str) -> int:
        async with grpc.aio.insecure_channel(address) as channel:
            check: Any = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
            return int((await check(health_pb2.HealthCheckRequest(service=service))).status)

    async def run() -> None:
        stop, caller = asyncio.Event(), Caller(folder)
        serving = asyncio.create_task(serve(options, None, stop))
        await asyncio.to_thread(wait_until, caller.is_ready)
        assert await asyncio.to_thread(caller.infer, 3.0) == 6.0
        assert await asyncio.to_thread(caller.health, "") == SERVING
        for service in ("", "live", "inference.GRPCInferenceService"):
            assert await checked(f"127.0.0.1:{health}", service) == SERVING
        url = f"http://127.0.0.1:{metrics}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
        assert (
            b'jellybean_asked_total{operator="double",outcome="completed",variant="only",worker="edge-1"} 1.0' in text
        )
        assert not serving.done()
        assert await asyncio.to_thread(listed, folder) == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
            "jellybean.agent.v1.Agent",
        }
        await asyncio.to_thread(caller.close)
        stop.set()
        await serving

    asyncio.run(run())
    assert "edge-1 ready: double" in caplog.text
    assert "edge-1 drained, 0 requests left" in caplog.text
    assert list(folder.glob("counters-*"))


def test_what_an_agent_is_not_started_with(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    plan, listen, peers = folder / "plan.json", f"unix:{folder}/edge-1", folder / "peers.json"

    async def refused(match: str, **changes: Any) -> None:
        given: dict[str, Any] = {"plan": plan, "worker": "edge-1", "root": folder, "listen": listen, "peers": peers}
        with pytest.raises(PlanViewError, match=match):
            await serve(Options(**{**given, **changes}), None, asyncio.Event())

    async def run() -> None:
        await refused("the plan gives worker 'edge-9' nothing to do; its workers: edge-1", worker="edge-9")
        await refused("TCP needs a certificate", listen="127.0.0.1:7001")
        await refused("no such file", peers=folder / "none.json")
        await refused("exclude each other", tls=folder, insecure=True)

    asyncio.run(run())


@pytest.mark.parametrize("text", ["not json", "[]", '{"a": 1}', '{"a": "127.0.0.1:7001"}'])
def test_addresses_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanViewError):
        read_peer_addresses(path, Transport("w"))
    path.write_text('{"": "unix:/a", "b": "unix:/c"}', encoding="utf-8")
    assert read_peer_addresses(path, Transport("w")) == {"": "unix:/a", "b": "unix:/c"}


class DeadPool:
    """A pool whose fork server is a process that ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def new_process(self) -> Any:
        raise TransientError(POOL_DIED)


def test_an_agent_whose_pool_dies_ends(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    options = Options(folder / "plan.json", "edge-1", folder, f"unix:{folder}/edge-1", folder / "peers.json")

    async def run() -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        pool: Any = DeadPool(process.pid)
        with pytest.raises(TransientError, match="the process that starts model processes has died"):
            await serve(options, pool, asyncio.Event())
        process.kill()
        await process.wait()

    asyncio.run(run())


def test_a_health_port_that_is_taken(tmp_path: Path) -> None:
    async def run() -> None:
        port = free_port()
        stop = await serve_health(port, _Servicer())
        with pytest.raises(PlanViewError, match=f"cannot listen on health port {port}: it is in use"):
            await serve_health(port, _Servicer())
        await stop()
        await (await serve_health(0, _Servicer()))()

    asyncio.run(run())


class _Servicer:
    async def set(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return None


# -- the command -------------------------------------------------------------------------------------------------------


def arguments(folder: Path, **changes: str) -> list[str]:
    given = {
        "plan": f"{folder}/plan.json",
        "worker": "edge-1",
        "root": str(folder),
        "listen": f"unix:{folder}/edge-1",
        "peers": f"{folder}/peers.json",
        **changes,
    }
    return [f"--{name}={value}" for name, value in given.items()] + ["--in-process"]


def test_the_command_serves_until_sigterm(tmp_path: Path, default_sigterm: None) -> None:
    folder = run_folder(tmp_path)
    answers: list[float] = []
    has_ended = threading.Event()

    def use() -> None:
        caller = Caller(folder)
        wait_until(lambda: has_ended.is_set() or caller.is_ready())
        if not has_ended.is_set():
            answers.append(caller.infer(4.0))
            caller.close()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=use)
    thread.start()
    status = main([*arguments(folder), "--drain-s=0", "--no-emulation"])
    has_ended.set()
    thread.join()
    assert (status, answers) == (0, [8.0])


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"worker": "edge-9"}, 2, "edge-9: the plan gives worker 'edge-9' nothing to do; its workers: edge-1"),
        ({"plan": "/none.json"}, 2, "edge-1: /none.json: there is no such file or folder"),
        ({"root": "/nowhere"}, 2, "edge-1: double/only: model /nowhere/models/double.onnx: there is no such file"),
        ({"allow-python": "nonsense"}, 2, "nonsense"),
        ({"counters": "/none/counters", "listen": "127.0.0.1:1"}, 2, "TCP needs a certificate"),
    ],
)
def test_what_the_command_cannot_start_it_says_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], status: int, reason: str
) -> None:
    assert main(arguments(run_folder(tmp_path), **changes)) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if reason in line]
    assert len(lines) == 1
    assert not lines[0].startswith("Traceback")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path)
    assert main(arguments(folder, links=f"{folder}/none/links")) == 1
    assert f"edge-1: {folder}/none/links: there is no such file or folder" in capsys.readouterr().err


def test_the_command_needs_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--worker=a", "--plan=p"])
    assert ended.value.code == 2
    assert "the following arguments are required: --listen, --peers (or --join)" in capsys.readouterr().err


def test_logs_for_machines_have_the_reason_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(run_folder(tmp_path), worker="edge-9"), "--log-format=json"]) == 2
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["level"], line["process"]) == ("error", "edge-9")
    assert line["message"].startswith("the plan gives worker 'edge-9' nothing to do")
