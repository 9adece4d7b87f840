"""The compared servers: how each is started, called and stopped. They run one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.overhead.load import ClientTls, Connect, Grpc, Http1, UnixSocketRpc
from benchmarks.overhead.models import Case
from benchmarks.overhead.processes import UnavailableError, certificates, client_tls, free_port, started
from jellybean.bench.chain import SOURCE, chain
from jellybean.serving.local import launcher
from jellybean.serving.local.settings import LaunchSettings
from jellybean_agent import Identity, Role
from jellybean_agent.rpc.unix_socket_frames import CALL, FRAME, GREETING, HEAD
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import to_document

RIVALS = Path(__file__).parent / "rivals"
RIVAL_NAMES = ("kserve", "ray", "mosec")  # of the packages, and of their environments
OPERATOR = "stage_0"
_PLAN, _WORKER = "one", "here-1"
_RATE_PER_S = 10_000.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"

Server = Callable[[Case], contextlib.AbstractContextManager[Connect]]


@contextlib.contextmanager
def agent_grpc(case: Case) -> Iterator[Connect]:
    """One agent that serves one operator, over the Open Inference Protocol (gRPC)."""
    port = free_port()
    with _agent(case, f"127.0.0.1:{port}", _open_inference(port, OPERATOR, "x", case)) as connect:
        yield connect


@contextlib.contextmanager
def agent_tls(case: Case) -> Iterator[Connect]:
    """The same with mutual TLS."""
    port = free_port()
    with _agent_certificates() as (folder, tls):
        connect = _open_inference(port, OPERATOR, "x", case, tls)
        with _agent(case, f"127.0.0.1:{port}", connect, f"--tls={folder}") as connected:
            yield connected


@contextlib.contextmanager
def agent_unix_socket(case: Case) -> Iterator[Connect]:
    """The same agent and messages over its Unix-socket RPC."""
    with tempfile.TemporaryDirectory(prefix="jellybean-lane-") as name:
        message, ends = _message(OPERATOR, "x", case), case.output.tobytes()
        told = HEAD.pack(0.0, len(_INFER), 0) + _INFER.encode() + message
        request = FRAME.pack(len(told) + FRAME.size - 4, 1, CALL) + told
        path = f"{name}/agent.sock"
        with _agent(case, f"unix:{path}", lambda: UnixSocketRpc(path, GREETING, request, ends)) as connect:
            yield connect


@contextlib.contextmanager
def _agent(case: Case, address: str, connect: Connect, security: str = "--insecure") -> Iterator[Connect]:
    with tempfile.TemporaryDirectory(prefix="jellybean-overhead-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(
            json.dumps(to_document(chain(_PLAN, [case.model], rate_per_s=_RATE_PER_S))), encoding="utf-8"
        )
        (folder / "peers.json").write_text(json.dumps({"": f"unix:{name}/g", _WORKER: address}), encoding="utf-8")
        own = [f"--plan={name}/plan.json", f"--peers={name}/peers.json", f"--root={case.model.parent}"]
        command = [sys.executable, "-m", "jellybean_agent", *own, f"--worker={_WORKER}", f"--listen={address}"]
        with started([*command, security], connect):
            yield connect


@contextlib.contextmanager
def gateway_grpc(case: Case) -> Iterator[Connect]:
    """The gateway of a plan with that one operator: two more processes, with retries, deduplication and deadlines."""
    with tempfile.TemporaryDirectory(prefix="jellybean-overhead-") as name:
        model = Path(name) / case.model.name
        model.write_bytes(case.model.read_bytes())
        plan = to_document(chain("one", [model], rate_per_s=_RATE_PER_S))
        running = launcher.up(Path(name), plan, LaunchSettings(port=0, insecure=True))
        try:
            port = int(running.state.clients_address.rpartition(":")[2])
            yield _open_inference(port, "one", SOURCE, case)
        finally:
            running.down()


@contextlib.contextmanager
def plain_grpc(case: Case) -> Iterator[Connect]:
    """grpc's synchronous Python server in front of onnxruntime."""
    port = free_port()
    connect = _open_inference(port, "model", "x", case)
    with started([sys.executable, str(RIVALS / "plain_grpc.py"), str(case.model), str(port)], connect):
        yield connect


@contextlib.contextmanager
def plain_grpc_tls(case: Case) -> Iterator[Connect]:
    """The same with mutual TLS by grpc."""
    port = free_port()
    with _agent_certificates() as (folder, tls):
        connect = _open_inference(port, "model", "x", case, tls)
        command = [sys.executable, str(RIVALS / "plain_grpc.py"), str(case.model), str(port), str(folder)]
        with started(command, connect):
            yield connect


@contextlib.contextmanager
def kserve(case: Case) -> Iterator[Connect]:
    """KServe's Python server, Open Inference Protocol."""
    port = free_port()
    connect = _open_inference(port, "model", "x", case)
    with started(_isolated_server("kserve", ["kserve"], "kserve_server.py", case, port), connect):
        yield connect


@contextlib.contextmanager
def ray_serve(case: Case) -> Iterator[Connect]:
    """Ray Serve, raw bytes over HTTP."""
    port = free_port()
    connect = _http(port, "/", case)
    with started(_isolated_server("ray", ["ray[serve]"], "ray_server.py", case, port), connect):
        yield connect


@contextlib.contextmanager
def mosec(case: Case) -> Iterator[Connect]:
    """mosec, raw bytes over HTTP."""
    port = free_port()
    connect = _http(port, "/inference", case)
    with started(_isolated_server("mosec", ["mosec"], "mosec_server.py", case, port), connect):
        yield connect


SERVERS: dict[str, Server] = {
    "agent, fast lane": agent_unix_socket,
    "agent, Open Inference Protocol": agent_grpc,
    "agent, Open Inference Protocol, TLS": agent_tls,
    "gateway, Open Inference Protocol": gateway_grpc,
    "plain sync grpc": plain_grpc,
    "plain sync grpc, TLS": plain_grpc_tls,
    "KServe": kserve,
    "Ray Serve": ray_serve,
    "mosec": mosec,
}


@contextlib.contextmanager
def _agent_certificates() -> Iterator[tuple[Path, ClientTls]]:
    """The folder of an agent's certificate, and the TLS of its clients."""
    agent = Identity(_PLAN, Role.AGENT, _WORKER)
    with certificates([agent]) as (folders, client):
        yield folders[agent], client_tls(client, agent)


def _open_inference(port: int, model: str, source: str, case: Case, tls: ClientTls | None = None) -> Connect:
    message, ends = _message(model, source, case), case.output.tobytes()
    return lambda: Grpc(("127.0.0.1", port), _INFER, message, ends, tls)


def _message(model: str, source: str, case: Case) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=source, datatype="FP32", shape=case.input.shape)
    request.raw_input_contents.append(case.input.tobytes())
    return request.SerializeToString()


def _http(port: int, path: str, case: Case) -> Connect:
    body = case.input.tobytes()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda: Http1(("127.0.0.1", port), head, body, case.output.tobytes())


def rival_versions() -> list[str]:
    """`kserve 0.15.2` for each server from PyPI that is installed here, and the version of grpc."""
    program = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    pythons = {"grpcio": sys.executable} | {
        name: str(python) for name in RIVAL_NAMES if (python := _environment(name) / "bin" / "python").exists()
    }
    versions = {
        name: subprocess.run([python, "-c", program, name], capture_output=True, text=True, check=False).stdout.strip()
        for name, python in pythons.items()
    }
    return [f"{name} {version}" for name, version in versions.items() if version]


def _environment(name: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("JELLYBEAN_RIVALS") or cache / "jellybean-benchmarks") / name


def _isolated_server(name: str, packages: Sequence[str], script: str, case: Case, port: int) -> list[str]:
    """Command of a server from PyPI in its own environment, as its pins of grpc and protobuf conflict with ours."""
    folder = _environment(name)
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
        for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "onnxruntime", "numpy"]):
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise UnavailableError(f"{' '.join(packages)} cannot be installed: {made.stderr.strip()[-300:]}")
        done.touch()
    return [str(python), str(RIVALS / script), str(case.model), str(port)]
