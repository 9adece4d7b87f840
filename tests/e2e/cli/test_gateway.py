"""Every command against `jellybean gateway` and boxes that joined it: real processes and mutual TLS."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from jellybean.serving import (
    Client,
    NotRunningError,
    OutcomeKind,
    RequestError,
    open_authority,
    read_state,
    running_state,
)
from jellybean.serving.local.running import down
from jellybean_agent import file_sha256, read_credentials
from jellybean_protos.gateway.v1 import gateway_pb2
from tests.support.command_line import jellybean, jellybean_process
from tests.support.ports import free_port
from tests.support.scales_project import WORKERS, make_scales_project

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ONES = {"x": np.ones((1, 4), np.float32)}
ACCURATE = ("--set", "slo.accuracy=90")
LIMIT_S = 240.0


@dataclass
class Site:
    """A project whose gateway runs here, and two boxes that join it."""

    project: Path
    ports: dict[str, int] = field(default_factory=dict)
    boxes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    alone: dict[str, Any] = field(default_factory=dict)  # what commands said before any box had joined

    def __post_init__(self) -> None:
        names = ("", *WORKERS, "enrol", "clients", "http", "metrics")
        self.ports = {name: free_port() for name in names}
        peers = {name: f"127.0.0.1:{self.ports[name]}" for name in ("", *WORKERS)}
        (self.project / "peers.json").write_text(json.dumps(peers), encoding="utf-8")

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Options of a command that calls the gateway's port for clients."""
        return ("--gateway", f"127.0.0.1:{self.ports['clients']}")

    def certificate(self, path: str) -> Path:
        return self.project / ".jellybean/certs" / path

    def start_gateway(self, *more: str) -> str:
        """Start the gateway; returns what the command prints."""
        own = ("--peers", str(self.project / "peers.json"), "--enrol", f"127.0.0.1:{self.ports['enrol']}")
        own += ("--port", str(self.ports["clients"]), "--http-port", str(self.ports["http"]))
        own += ("--metrics-port", str(self.ports["metrics"]), "--detach")
        return jellybean("gateway", str(self.project), *own, *more).stdout

    def start_box(self, worker: str, token: str) -> None:
        own = [f"--join=127.0.0.1:{self.ports['enrol']}", f"--token={token}", "--plan-every-s=5"]
        state = self.project.parent / worker
        with (self.project.parent / f"{worker}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "jellybean_agent", *own, f"--state={state}"]
            self.boxes[worker] = subprocess.Popen(command, stdout=log, stderr=log)

    def await_ready(self) -> None:
        until_s = time.monotonic() + LIMIT_S
        with Client.of(self.project) as client:
            while (status := status_of(client)) is None or status.state != "ready":
                ended = [name for name, box in self.boxes.items() if box.poll() is not None]
                assert not ended, [(self.project.parent / f"{name}.log").read_text(encoding="utf-8") for name in ended]
                assert time.monotonic() < until_s, status
                time.sleep(0.05)

    def gateway_pid(self) -> int:
        return next(process.pid for process in running_state(self.project).processes)


def status_of(client: Client) -> gateway_pb2.StatusResponse | None:
    """The status of a gateway; None while it does not answer."""
    with contextlib.suppress(RequestError):
        return client.status()
    return None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_scales_project(tmp_path_factory.mktemp("gateway") / "scales")
    jellybean("plan", str(folder))
    return folder


@pytest.fixture(scope="module")
def site(project: Path) -> Iterator[Site]:
    found = Site(project)
    jellybean("certs", str(project))
    try:
        found.alone["gateway"] = found.start_gateway()
        found.alone["infer"] = refusal("infer", str(project), "--input", "x=float32:[1, 1, 1, 1]")
        found.alone["top"] = printed("top", str(project))
        found.alone["bench"] = refusal("bench", str(project), "--duration", "60")
        for worker in WORKERS:
            found.start_box(worker, printed("token", str(project), "--worker", worker)["token"])
        found.await_ready()
        yield found
    finally:
        for box in found.boxes.values():
            box.terminate()
        with contextlib.suppress(NotRunningError):
            down(project, timeout_s=1.0)
        for box in found.boxes.values():
            try:
                box.wait(20)
            except subprocess.TimeoutExpired:
                box.kill()
                box.wait()


def printed(*arguments: str) -> Any:
    """What a command prints as JSON."""
    return json.loads(jellybean(*arguments, "--json").stdout)


@pytest.fixture(params=["the project's run", "a gateway elsewhere"])
def at(request: pytest.FixtureRequest, site: Site) -> tuple[str, ...]:
    """Options of commands: none, or the gateway's address, with the certificate of the project's admin."""
    return () if request.param == "the project's run" else site.elsewhere


def test_a_gateway_without_boxes_says_who_has_joined_and_what_the_others_run(site: Site) -> None:
    first, waiting, here, box, *_ = site.alone["gateway"].splitlines()
    assert f"on 127.0.0.1:{site.ports['clients']}" in first
    assert "0 of 2 workers have joined" in first
    assert waiting == "requests are answered over routes whose workers have all joined; waiting for box-1, server-1"
    assert here.endswith(f"jellybean token {site.project} --worker box-1 > token")
    assert f"jellybean-agent --join 127.0.0.1:{site.ports['enrol']} --token-file token" in box
    assert "0 of 2 workers are ready, waiting for box-1, server-1; no worker of" in site.alone["infer"]
    assert (
        "nothing was measured: requests are refused until a route has all its workers; waiting for box-1, server-1"
        in (site.alone["bench"])
    )
    assert (site.alone["top"]["state"], site.alone["top"]["outcomes"]) == (
        "starting",
        dict.fromkeys(OutcomeKind, 0) | {"unavailable": 1},
    )


def test_infer_and_top(site: Site, at: tuple[str, ...]) -> None:
    answer = printed("infer", str(site.project), "--input", "x=float32:[1, 2, 3, 4]", *at)
    assert answer == {"triple": [[6, 12, 18, 24]]}
    top = printed("top", str(site.project), *at)
    assert (top["workflow"], top["state"]) == ("scales", "ready")
    assert top["outcomes"]["answered"] > 0
    assert [(row["worker"], row["state"]) for row in top["workers"]] == [(worker, "ready") for worker in WORKERS]
    assert all(row["busy"] is not None and row["planned"] > 0 for row in top["workers"])


def test_bench_and_report(site: Site, at: tuple[str, ...]) -> None:
    easy = ("--duration", "2", "--set", "sources.x.rate=5/s")
    record = printed("bench", str(site.project), *easy, *at)
    assert (record["offered"], record["completed"], record["failed"]) == (10, 10, 0)
    assert set(record["utilisation"]) == set(WORKERS)
    assert all(0 < busy < 1 for busy in record["utilisation"].values())
    network = 5 * 16 * 3600 / 2**30  # 16 bytes a request, 1 USD/GiB
    assert record["cost_usd_per_h"] == pytest.approx(0.3 + network, rel=1e-3)
    assert record["breaches"] == []
    report = printed("report", str(site.project), *at)
    assert report["plan_hash"] == record["plan"]
    assert "scaled" in {made["kind"] for made in report["runs"]}


def test_metrics_and_https_ports(site: Site) -> None:
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{site.ports['metrics']}/metrics", timeout=30).read().decode()
    assert all(f'worker="{worker}"' in metrics for worker in WORKERS)
    folder = site.certificate("client/client")
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    at = f"https://localhost:{site.ports['http']}/v2/models/scales/ready"
    assert urllib.request.urlopen(at, context=context, timeout=30).status == 200


def test_only_an_admin_changes_what_is_served(site: Site) -> None:
    as_client = (*site.elsewhere, "--tls", str(site.certificate("client/client")))
    jellybean("infer", str(site.project), "--input", "x=float32:[1, 1, 1, 1]", *as_client)
    for command in ("apply", "down", "top"):
        assert "client client may not call" in refusal(command, str(site.project), *as_client)
    with Client.of(site.project) as client:
        assert client.status().state == "ready"


def test_certificates_made_in_a_copy_of_the_project_are_said_to_be_of_another_authority(
    site: Site, tmp_path: Path
) -> None:
    copy = shutil.copytree(site.project, tmp_path / "copy", ignore=shutil.ignore_patterns(".jellybean"))
    jellybean("certs", str(copy))
    for command in ("top", "apply", "bench", "report", "down"):
        said = refusal(command, str(copy), *site.elsewhere, status=2)
        assert "`jellybean certs` made another authority here, which it does not know" in said
    said = jellybean_process("top", str(copy), *site.elsewhere, status=2).stderr
    assert said.startswith("the certificate of the gateway"), "no line of OpenSSL's before it"
    own = ("--tls", str(site.certificate("admin/admin")))
    assert printed("top", str(copy), *site.elsewhere, *own)["workflow"] == "scales"


class Load:
    """Sends requests one after the other until it is left; `answers`: the first value of each."""

    def __init__(self, site: Site) -> None:
        self.site, self.answers, self.failures = site, list[float](), list[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        folder = self.site.certificate("client/client")
        with Client(f"127.0.0.1:{self.site.ports['clients']}", tls=folder, timeout_s=60.0) as client:
            while not self._over.is_set():
                try:
                    self.answers.append(float(client.infer(ONES)["triple"][0, 0]))
                except RequestError as error:
                    self.failures.append(str(error))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LIMIT_S)


def test_apply_moves_the_boxes_to_another_plan_without_losing_a_request(site: Site) -> None:
    gateway = site.gateway_pid()
    pids = {worker: box.pid for worker, box in site.boxes.items()}
    before = running_state(site.project).plan
    with Load(site) as load:
        jellybean("apply", str(site.project), *ACCURATE, "--timeout", str(LIMIT_S))
        served = json.loads((site.project / "plan.json").read_text(encoding="utf-8"))["hash"]
        with Client.of(site.project) as client:
            assert client.status().plan == served != before
            assert client.infer(ONES)["triple"].tolist() == [[15, 15, 15, 15]]
        assert printed("top", str(site.project))["plan"] == served
        jellybean("plan", str(site.project))  # and back
        back = printed("apply", str(site.project), *site.elsewhere, "--timeout", str(LIMIT_S))
        assert back == {"workflow": "scales", "plan": before, "changed": True}
        assert not printed("apply", str(site.project))["changed"]
        assert printed("top", str(site.project))["plan"] == before
    assert load.failures == []
    tried = (site.project.parent / "box-1.log").read_text(encoding="utf-8")
    assert f"plan {served[:12]} was tried: first loaded and run" in tried
    changes = [value for value, after in zip(load.answers, [*load.answers[1:], 0.0], strict=True) if value != after]
    assert changes == [6.0, 15.0, 6.0]
    assert site.gateway_pid() == gateway
    assert all(box.poll() is None and box.pid == pids[worker] for worker, box in site.boxes.items())
    replan = printed("plan", str(site.project), "--from", "running")
    assert replan["replan"]["running"]["hash"] == before  # not the one of the first `apply`


def test_a_gateway_that_is_killed_is_started_again_with_the_plan_of_the_last_apply(site: Site) -> None:
    """Applied after `test_apply...`: from elsewhere, so that the state of the run names the plan before it."""
    killed, state = site.gateway_pid(), running_state(site.project)
    with Client.of(site.project) as client:
        served = client.status().plan
    assert served != state.plan
    os.kill(killed, signal.SIGKILL)
    until_s = time.monotonic() + LIMIT_S
    while read_state(site.project).processes[0].pid == killed:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    site.await_ready()
    with Client.of(site.project) as client:
        assert client.status().plan == served
        assert client.infer(ONES)["triple"].tolist() == [[6, 6, 6, 6]]


def test_a_plan_whose_model_is_damaged_at_the_gateway_changes_nothing(site: Site, tmp_path: Path) -> None:
    copy = shutil.copytree(site.project, tmp_path / "copy")  # with the certificates: from another machine
    for kept in (site.project.parent / "box-1/models").rglob("five.onnx*"):
        kept.unlink()
    model = site.project / "models/five.onnx"
    model.write_bytes(b"damaged")
    with Load(site) as load:
        error = refusal("apply", str(copy), *site.elsewhere, *ACCURATE, "--timeout", str(LIMIT_S))
    shutil.copy(copy / "models/five.onnx", model)
    assert (
        "keeps its plan: worker box-1: downloading five.onnx: model file models/five.onnx at the gateway has" in error
    )
    assert (set(load.answers), load.failures) == ({6.0}, [])


def test_a_box_that_cannot_load_its_new_model_never_leaves_the_plan_before(site: Site, tmp_path: Path) -> None:
    """The model is of a later opset than the box's ONNX Runtime reads."""
    log = site.project.parent / "box-1.log"
    starts = log.read_text(encoding="utf-8").count("box-1 ready")
    copy = shutil.copytree(site.project, tmp_path / "copy")
    changed, workflow = copy / "models/five.onnx", copy / "workflow.yaml"
    before = file_sha256(changed)
    later = onnx.load(changed)
    later.opset_import[0].version = 1000
    onnx.save(later, changed)
    workflow.write_text(workflow.read_text(encoding="utf-8").replace(before, file_sha256(changed)), encoding="utf-8")
    served = site.project / "models/five.onnx"
    five = served.read_bytes()
    shutil.copy(changed, served)
    abandoned = site.project.parent / f"box-1/models/models/two.onnx.{'0' * 16}.part"
    abandoned.write_bytes(b"of a plan that was not served in the end")
    pids = {worker: box.pid for worker, box in site.boxes.items()}
    with Load(site) as load:
        error = refusal("apply", str(copy), *site.elsewhere, *ACCURATE, "--timeout", str(LIMIT_S), "--stale")
        site.await_ready()
    served.write_bytes(five)
    assert "keeps its plan: worker box-1: first/five: model" in error
    assert "cannot be served here" in log.read_text(encoding="utf-8")
    assert log.read_text(encoding="utf-8").count("box-1 ready") == starts
    assert not list((site.project.parent / "box-1").glob("trial-*"))
    assert not abandoned.exists()
    assert (set(load.answers), load.failures) == ({6.0}, [])
    assert all(box.poll() is None and box.pid == pids[worker] for worker, box in site.boxes.items())


def test_down_drains_and_boxes_wait_for_the_next_gateway(site: Site) -> None:
    assert printed("down", str(site.project)) == {"stopped": True, "left": 0}
    assert read_state(site.project) is None
    assert "nothing is up" in refusal("infer", str(site.project), "--input", "x=float32:[1, 1, 1, 1]")
    started = json.loads(site.start_gateway("--json"))
    site.await_ready()
    state = running_state(site.project)
    assert started["address"] == state.clients_address == f"127.0.0.1:{site.ports['clients']}"
    assert (started["workflow"], started["plan"]) == ("scales", state.plan)
    assert started["joined"] + len(started["waiting"]) == 2
    assert set(started["workers"]) == set(WORKERS)
    jellybean("down", str(site.project), *site.elsewhere)
    until_s = time.monotonic() + LIMIT_S
    while read_state(site.project) is not None or state.alive():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert all(box.poll() is None for box in site.boxes.values())


def test_certificates_that_are_missing_or_expired_are_named_with_the_command_that_makes_them(
    project: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(project, tmp_path / "scales", ignore=shutil.ignore_patterns(".jellybean"))
    peers = tmp_path / "peers.json"
    peers.write_text(json.dumps(dict.fromkeys(("", *WORKERS), "127.0.0.1:1")), encoding="utf-8")
    gateway, remote = ("--peers", str(peers), "--detach"), ("--gateway", "127.0.0.1:1")
    advice = f"run `jellybean certs {folder}`"
    unknown = refusal("token", str(folder), "--worker", "box-2", status=2)
    assert "its workers: box-1, server-1; did you mean 'box-1'?" in unknown
    assert advice in refusal("gateway", str(folder), *gateway, status=2)
    assert advice in refusal("token", str(folder), "--worker", "box-1", status=2)
    copied = "copy the folder .jellybean/certs/admin/admin from the gateway's project"
    for command in ("apply", "bench", "down", "report", "top"):
        assert copied in refusal(command, str(folder), *remote, status=2)
    assert copied in refusal("infer", str(folder), "--input", "x=float32:[1, 1, 1, 1]", *remote, status=2)
    assert "is a new authority: only processes with its certificates know it" in jellybean("certs", str(folder)).stderr
    assert "nothing listens at 127.0.0.1:1" in refusal("top", str(folder), *remote)
    for name in ("gateway", "admin/admin"):
        expire(folder / ".jellybean/certs", name)
    assert advice in refusal("gateway", str(folder), *gateway, status=2)
    assert advice in refusal("top", str(folder), *remote, status=2)
    jellybean("certs", str(folder))
    peers.write_text(json.dumps({"": "127.0.0.1:1", "box-1": "127.0.0.1:2"}), encoding="utf-8")
    assert "no address of worker 'server-1'" in refusal("gateway", str(folder), *gateway, status=2)
    peers.write_text(json.dumps({"": "127.0.0.1:1"} | dict.fromkeys(WORKERS, "127.0.0.1:2")), encoding="utf-8")
    same = "'box-1' and 'server-1' have the same address '127.0.0.1:2'"
    assert same in refusal("gateway", str(folder), *gateway, status=2)
    assert "HOST:PORT" in refusal("top", str(folder), "--gateway", "nowhere", status=2)
    assert "--gateway" in refusal("top", str(folder), "--tls", str(folder), status=2)


def refusal(*arguments: str, status: int = 1) -> str:
    """What a command that must fail says, in one line."""
    return " ".join(jellybean(*arguments, status=status).stderr.split())


def expire(certificates: Path, name: str) -> None:
    """Replace a certificate by one that has expired."""
    identity = read_credentials(certificates / name).identity
    open_authority(certificates / "ca").equip(certificates / name, identity, life_s=-1.0)
