"""`profile --on`: variants are measured on workers, over their agents' own channel with mutual TLS."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from jellybean.documents import Part, build_problem, load_project, read_profiles, write_profiles
from jellybean.errors import InputError, StaleProfilesError
from jellybean.profiler import Scope, WorkerAgent, measurements, profile, remote_workers, scope_on
from jellybean.profiler.remote.measure import WorkersError
from jellybean.profiler.remote.worker_agent import WorkerRefusedError
from jellybean.serving import RequestError, open_authority
from jellybean_agent import Identity, Role
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.command_line import jellybean
from tests.support.measured_project import MODULE, STEPS, make_project
from tests.support.streams_project import make_streams_project
from tests.support.tiny_models import chain, save
from tests.support.tls_run import TlsRun, tls_run

STEP = f"{MODULE}:enlarge"
TYPES = {"edge-1": "box", "cloud-1": "t4"}
SECONDS = 0.05
NO_ROWS = "kind: Profiles\nhop: 1 ms\noperators:\n  prepare: {double: {message: 16 B, latency: {other: 1 ms}}}\n"


def two_layers(path: Path) -> str:
    """relu(left w1) w2 - right: a model that can be cut; its sha256."""
    nodes = [
        helper.make_node("MatMul", ["a", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"]),
        helper.make_node("Sub", ["m", "b"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w1", (4, 8)), ("w2", (8, 4)))}
    return save(path, nodes, {"a": [1, 4], "b": [1, 4]}, ("y", [1, 4]), **weights)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRun]:
    """Two agents and their gateway, which serve another workflow's plan; the project is beside them."""
    root = tmp_path_factory.mktemp("on")
    folder = root / "gate"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(STEPS, encoding="utf-8")
    make_project(folder)
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    before = text.partition("compare.onnx, sha256: ")[2][:64]
    text = text.replace(before, two_layers(folder / "models/compare.onnx"))
    (folder / "workflow.yaml").write_text(text, encoding="utf-8")
    infrastructure = (folder / "infrastructure.yaml").read_text(encoding="utf-8")
    for old, new in {
        "box: {tier: edge, count: 2": "edge: {tier: edge, count: 3, type: box",
        "gpu: {": "cloud: {",
        ", speed: 0.5": "",
        ", speed: 1": "",
    }.items():
        assert old in infrastructure
        infrastructure = infrastructure.replace(old, new)
    (folder / "infrastructure.yaml").write_text(infrastructure, encoding="utf-8")
    options = (f"--allow-python={STEP}", f"--python-path={folder}", "--model-memory-mib=2000")
    with tls_run(root, chain(root), tuple(TYPES), agent_options=options) as found:
        yield found


def emptied(run: TlsRun) -> Path:
    """The project with a hop by hand as its profiles, and without finished measurements."""
    folder = run.root / "gate"
    (folder / "profiles.yaml").write_text(NO_ROWS, encoding="utf-8")
    (folder / ".jellybean/profile-cache/finished.jsonl").unlink(missing_ok=True)
    return folder


@pytest.fixture
def folder(run: TlsRun) -> Path:
    return emptied(run)


def command(run: TlsRun, folder: Path, *names: str, tls: Path | None = None) -> list[str]:
    workers = [option for name in names for option in ("--on", name)]
    admin = tls or run.certificate(Role.ADMIN, "root")
    own = ["--peers", str(run.root / "peers.json"), "--tls", str(admin), "--allow-python", STEP]
    return ["profile", str(folder), "--seconds", str(SECONDS), *workers, *own]


def agents(run: TlsRun, folder: Path, *names: str) -> list[WorkerAgent]:
    pools = load_project(folder, profiles=False).infrastructure.workers
    found = remote_workers(folder, pools, names, run.root / "peers.json", run.certificate(Role.ADMIN, "root"))
    return [WorkerAgent(worker).describe() for worker in found]


@pytest.fixture(scope="module")
def complete(run: TlsRun) -> bytes:
    """profiles.yaml after both workers have measured, of which one was killed in between and started again."""
    folder = emptied(run)
    project = load_project(folder, profiles=False)
    seen: list[str] = []

    def kill(_done: float, _total: float, label: str) -> None:
        if label.startswith("edge-1: ") and label not in seen:
            seen.append(label)
            if len(seen) == 3:
                run.processes["edge-1"].send_signal(signal.SIGKILL)
                run.processes["edge-1"].wait()

    settings = {"seconds_per_point": SECONDS, "allow_python": frozenset([STEP])}
    with pytest.raises(WorkersError, match="worker was lost; 2 of 7 rows of box are measured and kept") as error:
        profile(project, progress=kill, workers=agents(run, folder, *TYPES), **settings)
    assert not isinstance(error.value, InputError) and "t4" not in str(error.value)
    run.start("edge-1")
    run.await_ready()
    again = agents(run, folder, *TYPES)
    left = {entry for entry in measurements(project, scope_on(again)).measure if entry.part is Part.LATENCY}
    assert (len(left), {entry.worker_type for entry in left}) == (4, {"box"})
    profile(project, workers=again, **settings)
    return (folder / "profiles.yaml").read_bytes()


@pytest.mark.slow
def test_two_workers_measure_all_rows_of_their_types(run: TlsRun, folder: Path, complete: bytes) -> None:
    """Models, a function, a gather and the stages of a cut; each row names the run of the worker that measured it."""
    (folder / "profiles.yaml").write_bytes(complete)
    project = load_project(folder)
    build_problem(project)
    found = read_profiles(folder)
    assert found is not None
    for operator, variants in found.operators.items():
        for variant, measured in variants.items():
            for worker, name in TYPES.items():
                origin = measured.provenance.latency[name]
                assert origin.run is not None and found.runs[origin.run].worker == worker, (operator, variant)
                assert all(row.mean_s is not None and row.mean_s > 0 for row in measured.latency[name].values())
                assert all(row.memory_bytes for row in measured.latency[name].values())
    (cut,) = build_problem(project).operator_by_name["compare"].forms
    assert [set(one.variants[0].service) for one in cut.operators] == [{"edge", "cloud"}] * 2
    assert set(found.operators["sum"]["net"].latency["t4"]) == {1, 4}
    for worker in TYPES:
        assert "measuring operator compare" in (run.root / f"{worker}.log").read_text(encoding="utf-8")
    assert "nothing was measured" in jellybean(*command(run, folder, *TYPES)).stdout
    assert (folder / "profiles.yaml").read_bytes() == complete


@contextlib.contextmanager
def requests(run: TlsRun) -> Iterator[None]:
    """Requests to both workers, one after another; they have begun."""
    stop, answered = threading.Event(), threading.Event()

    def send() -> None:
        with run.client() as client:
            while not stop.is_set():
                with contextlib.suppress(RequestError):
                    client.infer({"x": np.ones((1, 4), np.float32)})
                    answered.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert answered.wait(60)
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_worker_that_serves_is_measured_only_by_force(run: TlsRun, folder: Path, complete: bytes) -> None:
    (folder / "profiles.yaml").write_bytes(complete)
    found = read_profiles(folder)
    assert found is not None
    del found.operators["sum"]["net"].latency["box"]
    write_profiles(folder / "profiles.yaml", found)
    with requests(run):
        refused = jellybean(*command(run, folder, "edge-1"), status=2)
        forced = jellybean(*command(run, folder, "edge-1"), "--force")
    assert "spoils the times: measure when it is idle, or measure it with --force" in " ".join(refused.stderr.split())
    assert "requests while it was measured, which makes its times longer" in " ".join(forced.stderr.split())


@pytest.mark.slow
def test_only_rows_of_a_type_are_merged(run: TlsRun, folder: Path) -> None:
    """`--type --merge` on a machine at hand leaves accuracy, messages and the other types to others."""
    jellybean("profile", str(folder), "--seconds", str(SECONDS), "--type", "t4", "--merge", "--allow-python", STEP)
    found = read_profiles(folder)
    assert found is not None and found.accuracy is None
    for variants in found.operators.values():
        assert all(set(measured.latency) - {"other"} == {"t4"} for measured in variants.values())
        assert all(
            measured.provenance.outputs is None or measured.provenance.outputs.by_hand for measured in variants.values()
        )


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["edge-9"], "--on edge-9: the fleet has no such worker"),
        (["edge-2"], "--on edge-2: it has not joined"),
        (["edge-1", "edge-2"], "edge-1 is a box, too, and profiles are per type: name one of them"),
    ],
)
def test_workers_that_cannot_be_named(run: TlsRun, folder: Path, names: list[str], text: str) -> None:
    assert text in " ".join(jellybean(*command(run, folder, *names), status=2).stderr.split())


@pytest.mark.parametrize("kind", ["client", "other authority", "missing"])
def test_certificates_that_may_not_measure(run: TlsRun, folder: Path, tmp_path: Path, kind: str) -> None:
    tls, text = tmp_path / "mine", "there is no"
    if kind == "client":
        tls, text = run.certificate(Role.CLIENT, "alice"), "client alice may not call"
    elif kind == "other authority":
        open_authority(tmp_path / "other").equip(tls, Identity("tiny", Role.ADMIN, "root"))
        text = "jellybean certs"
    done = jellybean(*command(run, folder, "edge-1", tls=tls), status=2)
    assert text in " ".join(done.stderr.split())
    assert (folder / "profiles.yaml").read_text(encoding="utf-8") == NO_ROWS


def test_an_emulated_type_and_options_that_belong_together(run: TlsRun, folder: Path) -> None:
    done = jellybean(*command(run, folder, "edge-1"), "--set", "workers.edge.speed=0.5", status=2)
    assert "workers.edge.speed says that this machine emulates a box" in " ".join(done.stderr.split())
    for options in (["--merge"], ["--tls", "x"], ["--on", "edge-1", "--type", "box"]):
        jellybean("profile", str(folder), *options, status=2)


NOTHING = hashlib.sha256(b"").hexdigest()


def subject(**fields: Any) -> agent_pb2.Subject:
    sample = agent_pb2.ContentFile(sha256=NOTHING)
    return agent_pb2.Subject(**{"name": "operator o, variant v", "device": "cpu", "sample": sample, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"files": [agent_pb2.ContentFile(sha256="0" * 64, size=3 * 2**30)]},
            "too big for edge-1: its files have 3,072",
        ),
        ({"files": [agent_pb2.ContentFile(sha256="0" * 64, size=3)]}, "a file came with sha256"),
        ({"files": [agent_pb2.ContentFile(sha256="0" * 64, size=2)]}, "more than was announced"),
        ({"files": [agent_pb2.ContentFile(sha256="../../x", size=3)]}, "is no sha256"),
        ({"function": "os:system"}, "python os:system is not allowed here"),
        ({"function": STEP, "sha256": "0" * 64}, "another version is installed here"),
        ({"device": "abacus"}, "'abacus' is no device"),
        ({"device": "cuda", "points": [agent_pb2.TimedPoint(batch=1, seconds=0.01, blocks=[0])]}, "device cuda:"),
    ],
)
def test_what_an_agent_refuses(run: TlsRun, folder: Path, fields: dict[str, Any], text: str) -> None:
    (agent,) = agents(run, folder, "edge-1")
    given: dict[str, Path | bytes] = {"0" * 64: b"abc", NOTHING: b""}
    if "points" in fields:
        model = folder / "models/compare.onnx"
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        fields = {"files": [agent_pb2.ContentFile(sha256=sha256, size=model.stat().st_size)], "sha256": sha256} | fields
        given[sha256] = model
    with pytest.raises(WorkerRefusedError) as error:
        list(agent.measure(subject(**fields), given))
    assert text in str(error.value)
    agent.close()


def test_nothing_listens_where_a_worker_should_be(run: TlsRun, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"edge-1": "127.0.0.1:1"}', encoding="utf-8")
    admin = str(run.certificate(Role.ADMIN, "root"))
    options = ["--on", "edge-1", "--peers", str(tmp_path / "peers.json"), "--tls", admin]
    done = jellybean("profile", str(folder), *options, status=2)
    assert "has it joined, and is its agent up?" in " ".join(done.stderr.split())


def test_types_of_workers_are_the_scope(run: TlsRun, folder: Path) -> None:
    scope = scope_on(agents(run, folder, "cloud-1"), Scope(fresh=True))
    assert (scope.types, scope.fresh, set(scope.machines)) == (("t4",), True, {"t4"})


@pytest.mark.slow
def test_a_model_with_a_state_is_measured_on_workers_with_the_states_of_its_streams(run: TlsRun) -> None:
    """As those of other models; figures of other streams are stale."""
    folder = make_streams_project(run.root / "streams")
    document = folder / "infrastructure.yaml"
    text = document.read_text(encoding="utf-8").replace("box:", "edge:").replace("server:", "cloud:")
    document.write_text(text, encoding="utf-8")
    no_rows = NO_ROWS.replace("prepare: {double:", "double: {two:")
    (folder / "profiles.yaml").write_text(no_rows, encoding="utf-8")
    jellybean(*command(run, folder, *TYPES))
    found = read_profiles(folder)
    assert found is not None
    for variant in ("long", "short"):
        origin = found.operators["remember"][variant].provenance.latency["cloud"]
        assert origin.run is not None and found.runs[origin.run].worker == "cloud-1"
        assert all(row.memory_bytes for row in found.operators["remember"][variant].latency["cloud"].values())
    build_problem(load_project(folder))
    data = dict(np.load(folder / "data/heldout.npz"))
    np.savez(folder / "data/heldout.npz", **{**data, "streams": data["streams"][::-1]})
    with pytest.raises(StaleProfilesError, match="stream_ids"):
        build_problem(load_project(folder))
