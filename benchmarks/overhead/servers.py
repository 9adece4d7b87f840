"""The compared servers: how each is started, called and stopped. They run one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.overhead.load import ClientTls, Connect, Grpc, Http1, LoadError, UnixSocketRpc
from benchmarks.overhead.models import Case
from jellybean.bench.chain import SOURCE, chain
from jellybean.serving.enrolment.authority import open_authority
from jellybean.serving.local import launcher
from jellybean.serving.local.settings import LaunchSettings
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role
from jellybean_agent.rpc.unix_socket_frames import CALL, FRAME, GREETING, HEAD
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_solver import to_document

RIVALS = Path(__file__).parent / "rivals"
OPERATOR = "stage_0"
_PLAN, _WORKER = "one", "here-1"
_START_S = 120.0
_RATE_PER_S = 10_000.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"

Server = Callable[[Case], contextlib.AbstractContextManager[Connect]]


class UnavailableError(Exception):
    """A server that is not available here, and why."""


@contextlib.contextmanager
def agent_grpc(case: Case) -> Iterator[Connect]:
    """One agent that serves one operator, over the Open Inference Protocol (gRPC)."""
    port = _free_port()
    with _agent(case, f"127.0.0.1:{port}", _open_inference(port, OPERATOR, "x", case)) as connect:
        yield connect


@contextlib.contextmanager
def agent_tls(case: Case) -> Iterator[Connect]:
    """The same with mutual TLS."""
    port = _free_port()
    with _certificates() as (folder, tls):
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
        with _started([*command, security], connect):
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
    port = _free_port()
    connect = _open_inference(port, "model", "x", case)
    with _started([sys.executable, str(RIVALS / "plain_grpc.py"), str(case.model), str(port)], connect):
        yield connect


@contextlib.contextmanager
def plain_grpc_tls(case: Case) -> Iterator[Connect]:
    """The same with mutual TLS by grpc."""
    port = _free_port()
    with _certificates() as (folder, tls):
        connect = _open_inference(port, "model", "x", case, tls)
        command = [sys.executable, str(RIVALS / "plain_grpc.py"), str(case.model), str(port), str(folder)]
        with _started(command, connect):
            yield connect


@contextlib.contextmanager
def kserve(case: Case) -> Iterator[Connect]:
    """KServe's Python server, Open Inference Protocol."""
    port = _free_port()
    connect = _open_inference(port, "model", "x", case)
    with _started(_isolated_server("kserve", ["kserve"], "kserve_server.py", case, port), connect):
        yield connect


@contextlib.contextmanager
def ray_serve(case: Case) -> Iterator[Connect]:
    """Ray Serve, raw bytes over HTTP."""
    port = _free_port()
    connect = _http(port, "/", case)
    with _started(_isolated_server("ray", ["ray[serve]"], "ray_server.py", case, port), connect):
        yield connect


@contextlib.contextmanager
def mosec(case: Case) -> Iterator[Connect]:
    """mosec, raw bytes over HTTP."""
    port = _free_port()
    connect = _http(port, "/inference", case)
    with _started(_isolated_server("mosec", ["mosec"], "mosec_server.py", case, port), connect):
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
def _certificates() -> Iterator[tuple[Path, ClientTls]]:
    """The folder of a server's certificate, and the TLS of its clients."""
    with tempfile.TemporaryDirectory(prefix="jellybean-certs-") as name:
        folder, server = Path(name), Identity(_PLAN, Role.AGENT, _WORKER)
        authority = open_authority(folder / "ca")
        authority.equip(folder / "server", server)
        authority.equip(folder / "client", Identity(_PLAN, Role.CLIENT, "load"))
        context = ssl.create_default_context(cafile=str(folder / "client" / CA_FILE))
        context.load_cert_chain(folder / "client" / CERTIFICATE_FILE, folder / "client" / PRIVATE_KEY_FILE)
        context.set_alpn_protocols(["h2"])
        yield folder / "server", ClientTls(context, server.tls_name)


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


def _isolated_server(name: str, packages: Sequence[str], script: str, case: Case, port: int) -> list[str]:
    """Command of a server from PyPI in its own environment, as its pins of grpc and protobuf conflict with ours."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("JELLYBEAN_RIVALS") or cache / "jellybean-benchmarks") / name
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


@contextlib.contextmanager
def _started(command: list[str], connect: Connect) -> Iterator[None]:
    """Run a server, from its first correct answer; its whole process group is killed at the end."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_serving(child, connect, log)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _wait_until_serving(child: subprocess.Popen[bytes], connect: Connect, log: object) -> None:
    until = time.monotonic() + _START_S
    why: Exception | None = None
    while time.monotonic() < until:
        if child.poll() is not None:
            break
        try:
            connection = connect()
            connection.socket.settimeout(10.0)
            connection.start()
            while not connection.receive():
                connection.flush()
            connection.socket.close()
        except (OSError, LoadError) as error:
            why = error
            time.sleep(0.2)
        else:
            return
    log.seek(0)  # type: ignore[attr-defined]
    told = log.read()[-600:].decode(errors="replace")  # type: ignore[attr-defined]
    raise UnavailableError(f"it does not serve ({why}): {told}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
