"""Boxes that join a gateway: real processes from a token to an answer; and who is too far away in version."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import RequestError, make_token
from jellybean.serving.enrolment.enrolment import take_token
from jellybean_agent import Identity, PlanViewError, Role, StatusError, file_sha256, protocol_mismatch, read_credentials
from jellybean_agent.enrolment.join_token import parse_token
from jellybean_agent.system.addresses import parse_address
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION, stated_protocol
from jellybean_protos.plan_format import READABLE_VERSIONS
from tests.support.exported_models import keep_weights_outside
from tests.support.ports import free_port
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.tls_run import WORKFLOW, TlsRun

ONES = {"x": np.ones((1, 4), np.float32)}
WORKERS = ("edge-1", "cloud-1")


class JoinRun(TlsRun):
    """A gateway that enrols boxes, and boxes that each have a folder of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.enrol = f"{self.host}:{free_port()}"
        self.hours = 1.0

    def start_gateway(self, protocol: int = PROTOCOL_VERSION) -> None:
        own = [f"--tls={self.certificate(Role.GATEWAY)}", f"--links={self.root}/links", f"--enrol={self.enrol}"]
        own += [f"--ca={self.root}/ca", f"--tokens={self.root}/tokens", f"--root={self.root}", "--no-emulation"]
        own += [f"--plan={self.root}/plan.json", f"--peers={self.root}/peers.json"]
        process = self.spawn(
            "", "jellybean.serving.gateway_main", [*own, f"--certificate-hours={self.hours}"], protocol
        )
        address = parse_address(self.enrol)
        until = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(address, 1.0):
                return
            time.sleep(0.05)

    def box(self, worker: str, *more: str, protocol: int = PROTOCOL_VERSION) -> subprocess.Popen[bytes]:
        own = [f"--join={self.enrol}", f"--state={self.state(worker)}", *more]
        return self.spawn(worker, "jellybean_agent.__main__", own, protocol)

    def spawn(self, name: str, module: str, own: list[str], protocol: int) -> subprocess.Popen[bytes]:
        code = (
            f"import sys, jellybean_agent.system.protocol_version as v; v.PROTOCOL_VERSION = {protocol}\n"
            f"from {module} import main; sys.exit(main())"
        )
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen([sys.executable, "-P", "-c", code, *own], stdout=log, stderr=log)
        return self.processes[name]

    def log(self, name: str) -> Path:
        return self.root / f"{name or 'gateway'}.log"

    def state(self, worker: str) -> Path:
        return self.root / "boxes" / worker

    def token(self, worker: str, life_s: float = 60.0) -> str:
        identity = Identity(WORKFLOW, Role.AGENT, worker)
        return str(make_token(self.root / "tokens", self.authority, identity, life_s=life_s))

    def stop(self, *names: str) -> None:
        for name in names or sorted(self.processes, reverse=True):  # the gateway last: it takes the agents' leave
            self.processes[name].terminate()
            try:
                self.processes[name].wait(20)
            except subprocess.TimeoutExpired:
                self.processes[name].kill()
                self.processes[name].wait()
            del self.processes[name]

    def until_told(self, name: str, text: str, timeout_s: float = 30.0) -> str:
        until = time.monotonic() + timeout_s
        while text not in (told := self.log(name).read_text(encoding="utf-8")):
            assert time.monotonic() < until, told
            time.sleep(0.05)
        return told


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[JoinRun]:
    """A gateway and its boxes; on another host than 127.0.0.1 where the test is given one."""
    chain(tmp_path)
    double = file_sha256(tmp_path / "models/double.onnx")
    triple = keep_weights_outside(tmp_path / "models/triple.onnx")
    operators = {"double": (["x"], double), "triple": (["double"], triple)}
    route = dict(zip(operators, WORKERS, strict=True))
    plan = make_plan(tmp_path, operators, [(1.0, route)], sources={"x": "edge"})
    found = JoinRun(tmp_path, plan, WORKERS, host=getattr(request, "param", "127.0.0.1"))
    try:
        yield found
    finally:
        found.stop()


def test_boxes_join_serve_and_come_back_without_a_token(run: JoinRun) -> None:
    run.start_gateway()
    for worker in WORKERS:
        run.box(worker, f"--token={run.token(worker)}")
    run.await_ready()
    first = read_credentials(run.state("edge-1") / "tls")
    assert first.identity == Identity(WORKFLOW, Role.AGENT, "edge-1")
    with run.client() as client:
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]
        assert [path.name for path in (run.state("edge-1") / "models/models").iterdir()] == ["double.onnx"]
        kept = sorted(path.name for path in (run.state("cloud-1") / "models/models").iterdir())
        assert kept == ["triple.onnx", "triple.onnx.data"]
        run.stop("edge-1")
        part_of(run, "edge-1", "double.onnx", 100)
        run.box("edge-1")
        run.await_ready()
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


def has_ipv6() -> bool:
    """True if this machine has an IPv6 address to listen on."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("run", ["[::1]", "[0:0:0:0:0:0:0:1]"], indirect=True)
def test_boxes_with_ipv6_addresses_join_and_serve(run: JoinRun) -> None:
    run.start_gateway()
    for worker in WORKERS:
        run.box(worker, f"--token={run.token(worker)}")
    run.await_ready()
    with run.client() as client:
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


@pytest.mark.slow
def test_boxes_take_the_plan_of_a_gateway_that_is_started_with_another(run: JoinRun) -> None:
    run.start_gateway()
    pids = [run.box(worker, f"--token={run.token(worker)}", "--plan-every-s=0.2").pid for worker in WORKERS]
    run.await_ready()
    run.stop("")
    sha256 = scale(run.root / "models/triple.onnx", 5.0)
    operators = {"double": (["x"], file_sha256(run.root / "models/double.onnx")), "triple": (["double"], sha256)}
    route = dict(zip(operators, WORKERS, strict=True))
    new = make_plan(run.root, operators, [(1.0, route)], sources={"x": "edge"})
    (run.root / "plan.json").write_text(json.dumps(new), encoding="utf-8")
    run.start_gateway()
    run.await_ready()
    with run.client() as client:
        assert client.status().plan == new["hash"]
        assert client.infer(ONES)["triple"].tolist() == [[10, 10, 10, 10]]
    assert [run.processes[worker].pid for worker in WORKERS] == pids
    assert all(run.processes[worker].poll() is None for worker in WORKERS)


@pytest.mark.nightly
def test_a_box_renews_its_certificate_and_serves_on(run: JoinRun) -> None:
    run.hours = 60.0 / 3600.0
    run.start_gateway()
    for worker in WORKERS:
        run.box(worker, f"--token={run.token(worker)}", "--renew-s=0.5")
    run.await_ready()
    first = {worker: read_credentials(run.state(worker) / "tls") for worker in WORKERS}
    until = time.monotonic() + 100
    with run.client() as client:
        while any(read_credentials(run.state(worker) / "tls").chain == first[worker].chain for worker in WORKERS):
            assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(1.0)  # streams have moved to connections with the new ones
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


def part_of(run: JoinRun, worker: str, model: str, size: int) -> None:
    """Leave so many bytes of a model as a download that was cut off does."""
    path = run.state(worker) / "models/models" / model
    sha256 = file_sha256(path)
    data = path.read_bytes()
    assert len(data) > size
    path.unlink()
    path.with_name(f"{model}.{sha256[:16]}.part").write_bytes(data[:size])


def test_what_a_box_is_refused(run: JoinRun) -> None:
    run.start_gateway()
    used = run.token("edge-1")
    take_token(run.root / "tokens", parse_token(used).secret, b"another box")
    for token, told in [
        (used, "the token is unknown, was used, or its time is over"),
        (run.token("moon-1"), "which is no worker of the plan"),
        (used[:-40] + "!" + used[-39:], "the token is damaged"),
    ]:
        assert run.box("edge-1", f"--token={token}").wait(120) == 2
        assert told in run.log("edge-1").read_text(encoding="utf-8").splitlines()[-1]
    assert run.box("edge-1").wait(120) == 2
    assert "join with a new token" in run.log("edge-1").read_text(encoding="utf-8").splitlines()[-1]


@pytest.mark.nightly
def test_a_model_that_was_overwritten_is_named_by_the_box_and_by_the_gateway(run: JoinRun) -> None:
    model = run.root / "models/double.onnx"
    model.write_bytes(model.read_bytes()[::-1])
    run.start_gateway()
    assert run.box("edge-1", f"--token={run.token('edge-1')}").wait(120) == 2
    reason = "model file models/double.onnx at the gateway has sha256 "
    assert f"downloading double.onnx: {reason}" in run.log("edge-1").read_text(encoding="utf-8").splitlines()[-1]
    assert f"boxes cannot download: {reason}" in run.log("").read_text(encoding="utf-8")
    with run.client() as client:
        assert client.status().reasons["edge-1"].startswith(reason)
        with pytest.raises(RequestError, match=f"waiting for edge-1 \\({reason}"):
            client.infer(ONES)
    files = [path for path in (run.state("edge-1") / "models").rglob("*") if path.is_file()]
    assert not any(path.stat().st_size for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("by", [pytest.param(-1, marks=pytest.mark.nightly), 1])
def test_neighbours_in_version_work(run: JoinRun, by: int) -> None:
    run.start_gateway()
    run.box("edge-1", f"--token={run.token('edge-1')}", protocol=PROTOCOL_VERSION + by)
    run.box("cloud-1", f"--token={run.token('cloud-1')}")
    run.await_ready()
    with run.client() as client:
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


@pytest.mark.slow
def test_an_agent_or_plan_of_another_version_is_refused_by_name(run: JoinRun) -> None:
    run.start_gateway()
    assert run.box("edge-1", f"--token={run.token('edge-1')}", protocol=PROTOCOL_VERSION + 2).wait(120) == 2
    told = run.log("edge-1").read_text(encoding="utf-8").splitlines()[-1]
    assert f"speaks protocol {PROTOCOL_VERSION + 2}; this process speaks {PROTOCOL_VERSION}" in told
    assert "update this process first" in told
    run.stop()
    document = json.loads((run.root / "plan.json").read_text(encoding="utf-8"))
    unknown = READABLE_VERSIONS[-1] + 1
    (run.root / "plan.json").write_text(json.dumps({**document, "version": unknown}), encoding="utf-8")
    run.start_gateway()
    assert run.processes[""].wait(120) == 2
    assert f"plan version {unknown}; this agent reads" in run.log("").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_gateway_of_another_version_says_so_and_waits(run: JoinRun) -> None:
    """Boxes that enrolled long ago; then the gateway is updated by two versions."""
    run.start_gateway()
    for worker in WORKERS:
        run.box(worker, f"--token={run.token(worker)}")
    run.await_ready()
    run.stop("")
    run.log("").write_text("", encoding="utf-8")
    run.start_gateway(protocol=PROTOCOL_VERSION + 2)
    with run.client() as client, pytest.raises(RequestError) as caught:
        client.status()
    assert caught.value.status == "FAILED_PRECONDITION"
    assert f"speaks protocol {PROTOCOL_VERSION}; this process speaks {PROTOCOL_VERSION + 2}" in caught.value.reason
    run.until_told(
        "", f"speaks protocol {PROTOCOL_VERSION + 2}; this process speaks {PROTOCOL_VERSION}", 90.0
    )  # what boxes answer it


def test_versions_in_words() -> None:
    assert (
        protocol_mismatch("it", PROTOCOL_VERSION)
        == protocol_mismatch("it", PROTOCOL_VERSION - 1)
        == protocol_mismatch("it", PROTOCOL_VERSION + 1)
        == ""
    )
    assert protocol_mismatch("it", PROTOCOL_VERSION + 2).endswith("update this process first")
    assert protocol_mismatch("it", PROTOCOL_VERSION - 2).endswith("update it first")
    assert [stated_protocol(value) for value in (None, "7", b"7", "x", "9" * 20, "-1")] == [1, 7, 7, 0, 0, 0]


def test_a_token_works_once_and_damaged_ones_do_not(tmp_path: Path, run: JoinRun) -> None:
    token = parse_token(run.token("edge-1"))
    assert parse_token(str(token)) == token
    assert [path.name for path in (run.root / "tokens").iterdir()] != [token.secret.hex()]
    for _ in range(2):  # the answer to the first time was lost
        assert take_token(run.root / "tokens", token.secret, b"mine") == token.identity.uri
    over = parse_token(run.token("edge-1", life_s=-1.0))
    for secret in (token.secret, over.secret, b"", b"x" * 32):
        with pytest.raises(StatusError, match="unknown, was used"):
            take_token(run.root / "tokens", secret, b"theirs")
    for text in ("", "jbt1", "jbt2.a.b.c", "jbt1.a.b.c", str(token)[:-300], "x" * 10**6):
        with pytest.raises(PlanViewError):
            parse_token(text)
