"""Nothing calls home: commands and processes connect to each other alone, and write where the documentation says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jellybean_protos.library_telemetry import TELEMETRY_OFF
from tests.support.network_namespace import Trace, traced
from tests.support.paths import EXAMPLES, ROOT
from tests.support.ports import free_port
from tests.support.scales_project import WORKERS, make_scales_project
from tests.support.skips import NotInstalled
from tests.support.tiny_models import chain

# Below the home folder, as docs/security.md says: runs' private folders, and the fonts that matplotlib has found.
CACHES = (".local/state/jellybean", ".cache/matplotlib", ".config/matplotlib")
SOCKETS = "/tmp/jellybean-"  # a run's private folder, whatever TMPDIR is: paths of sockets are short
DEVICES = (Path("/dev"), Path("/proc"))
# glibc asks a cache of users and hosts on this machine, where one runs.
NAME_CACHE = "/var/run/nscd/socket"
NETS = """\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

def data():
    rows = torch.randn(48, 9, generator=torch.Generator().manual_seed(1))
    rows = torch.utils.data.TensorDataset(rows, rows[:, :3].argmax(1))
    return {"train": rows, "test": rows}
"""
TRAINING = """\
kind: Training
model: nets.py:net
data: {function: nets.py:data, workers: 1}
epochs: 1
batch: 24
optimizer: {name: sgd, lr: 0.1}
device: cpu
"""


def environment(folder: Path) -> dict[str, str]:
    """A user's: without the variables that this project sets, with a home and a temporary folder of its own."""
    own = {"HOME": folder / "home", "TMPDIR": folder / "temporary"}
    for path in own.values():
        path.mkdir(exist_ok=True)
    # torch, which other tests of this process have imported, sets its cache for all that they start
    ours = {name for name in os.environ if name in TELEMETRY_OFF or name.startswith(("XDG_", "MPL", "TORCHINDUCTOR_"))}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {
        **kept,
        **{name: str(path) for name, path in own.items()},
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def tried(folder: Path, *commands: Sequence[str], limit_s: float = 280) -> Trace:
    """What these commands of `jellybean` tried, one after another, and all that they started."""
    lines = (shlex.join([sys.executable, "-m", "jellybean", *command]) for command in commands)
    return traced(["sh", "-ec", "\n".join(lines)], folder, environment(folder), limit_s)


def assert_stays_at_home(trace: Trace, folder: Path, *written: Path) -> None:
    """Nothing but their own ports and sockets was asked, which nobody else reaches; nothing was written elsewhere."""
    assert trace.strangers() == []
    assert trace.open_to_others() == []
    places = (*written, folder / "temporary")
    assert {path for path in trace.sockets if path != NAME_CACHE and not _is_in(path, places)} == set()
    caches = [folder / "home" / name for name in CACHES]
    outside = set(trace.outside(*places, *caches, *DEVICES)) - _above(caches)
    assert {path for path in outside if not str(path).startswith(SOCKETS)} == set()


def _above(paths: Sequence[Path]) -> set[Path]:
    return {parent for path in paths for parent in path.parents}


def _is_in(path: str, folders: Sequence[Path]) -> bool:
    of_run = path.startswith(SOCKETS)
    return of_run or any(Path(path).is_relative_to(folder.resolve()) for folder in folders)


def test_an_agent_with_its_model_process(tmp_path: Path) -> None:
    """The representative of the slow tests: until the model is loaded, which is when its library would call home."""
    (tmp_path / "plan.json").write_text(json.dumps(chain(tmp_path)), encoding="utf-8")
    peers = {
        "": f"unix:{tmp_path}/g",
        "edge-1": f"unix:{tmp_path}/e",
        "cloud-1": f"unix:{tmp_path}/c",
    }
    (tmp_path / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    files = [f"--plan={tmp_path}/plan.json", f"--peers={tmp_path}/peers.json", f"--root={tmp_path}"]
    agent = [
        sys.executable,
        "-m",
        "jellybean_agent",
        *files,
        "--worker=edge-1",
        f"--listen=unix:{tmp_path}/e",
    ]
    log = shlex.quote(f"{tmp_path}/log")
    script = f"{shlex.join(agent)} 2>{log} & until grep -q ready: {log}; do sleep 0.1; done; kill $!; wait $!"
    trace = traced(["sh", "-c", script], tmp_path, environment(tmp_path), 120)
    assert trace.sockets >= {f"{tmp_path}/c"}
    assert_stays_at_home(trace, tmp_path, tmp_path)


@pytest.mark.slow
def test_a_library_that_calls_home_would_be_seen(tmp_path: Path) -> None:
    """The same means see onnxruntime where its telemetry is on, and a look-up of this machine's name."""
    program = "import time, socket, onnxruntime; time.sleep(8); socket.getfqdn()"
    own = environment(tmp_path)
    trace = traced([sys.executable, "-c", program], tmp_path, own, 60)
    assert {port for _, port in trace.strangers()} & {53, 443}
    assert trace.outside(tmp_path / "temporary", *DEVICES)
    trace = traced([sys.executable, "-c", f"import jellybean; {program}"], tmp_path, own, 60)
    assert trace.outside(tmp_path / "temporary", *DEVICES) == []


@pytest.mark.slow
def test_from_an_example_to_its_report(tmp_path: Path) -> None:
    """`init`, `profile`, `plan`, and a run with all of its ports, for as long as telemetry would take to begin."""
    project, digits, drafted = (
        make_scales_project(tmp_path / "project"),
        tmp_path / "digits",
        tmp_path / "drafted",
    )
    infrastructure = project / "infrastructure.yaml"
    text = infrastructure.read_text(encoding="utf-8").replace("count: 1,", "count: 1, speed: 1,")
    infrastructure.write_text(text, encoding="utf-8")
    there = str(project)
    ports = [part for name in ("port", "http-port", "metrics-port") for part in (f"--{name}", str(free_port()))]
    row = ("infer", there, "--input", f"x={there}/data/heldout.npz#x[0]")
    trace = tried(
        tmp_path,
        ("init", "digits", str(digits)),
        ("validate", str(digits)),
        ("init", str(drafted), "--from", str(project / "models/two.onnx")),
        ("profile", there, "--fresh", "--seconds", "0.05"),
        ("plan", there),
        ("pipeline", "profile", f"{there}/models/two.onnx", "--out", f"{there}/layers.txt"),
        ("frontier", there, "--plot", f"{there}/frontier.svg"),
        ("certs", there),
        ("up", there, "--detach", *ports, "--tls", f"{there}/.jellybean/certs/gateway"),
        row,
        ("bench", there, "--duration", "5"),
        ("report", there, "--html", f"{there}/report.html"),
        ("cost", there),
        ("down", there),
    )
    assert_stays_at_home(trace, tmp_path, project, digits, drafted)


@pytest.mark.slow
def test_boxes_that_join(tmp_path: Path) -> None:
    """A gateway that enrols agents, which fetch plan and models, over ports with TLS."""
    project = make_scales_project(tmp_path / "project")
    jellybean, box = (f"{sys.executable} -m {module}" for module in ("jellybean", "jellybean_agent"))
    listen, enrol, clients, *addresses = (f"127.0.0.1:{free_port()}" for _ in range(5))
    peers = {"": listen, **dict(zip(WORKERS, addresses, strict=True))}
    (tmp_path / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
    ports = f"--listen {listen} --enrol {enrol} --host 127.0.0.1 --port {clients.rpartition(':')[2]}"
    agents = "\n".join(
        f"{jellybean} token {project} --worker {worker} > {tmp_path}/{worker}.token\n"
        f"{box} --join {enrol} --token-file {tmp_path}/{worker}.token --state {tmp_path}/{worker} "
        f"--listen {peers[worker]} 2>{tmp_path}/{worker}.log &"
        for worker in WORKERS
    )
    script = f"""
        set -e
        {jellybean} plan {project}
        {jellybean} certs {project} --host 127.0.0.1
        {jellybean} gateway {project} --peers {tmp_path}/peers.json {ports} --detach
        {agents}
        until {jellybean} infer {project} --input 'x={project}/data/heldout.npz#x[0]'; do sleep 0.2; done
        {jellybean} down {project}
        kill %1 %2
        wait
    """
    trace = traced(["bash", "-c", script], tmp_path, environment(tmp_path), 280)
    assert_stays_at_home(trace, tmp_path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "readers"),
    [
        (["devices=1"], 1),
        (["devices=2"], 1),
        (["replicas=2"], 0),
        (["replicas=2", "sync={way: parameter-server}"], 0),
    ],
    ids=["one", "pipeline", "replicas", "servers"],
)
def test_training(tmp_path: Path, settings: list[str], readers: int) -> None:
    """Ranks, their launcher and the readers of their rows."""
    pytest.importorskip("torch", reason=NotInstalled.TORCH)
    project = tmp_path / "project"
    project.mkdir()
    (project / "nets.py").write_text(NETS, encoding="utf-8")
    text = TRAINING.replace("workers: 1", f"workers: {readers}")
    (project / "training.yaml").write_text(text, encoding="utf-8")
    options = [part for setting in settings for part in ("--set", setting)]
    trace = tried(tmp_path, ("train", str(project), *options))
    assert_stays_at_home(trace, tmp_path, project)


@pytest.mark.slow
def test_the_script_of_an_example(tmp_path: Path) -> None:
    """`init ocr` runs a script that loads onnxruntime, OpenCV and matplotlib."""
    pytest.importorskip("rapidocr", reason=NotInstalled.OCR)
    project = tmp_path / "ocr"
    trace = tried(tmp_path, ("init", "ocr", str(project)))
    assert_stays_at_home(trace, tmp_path, project)


# Tests whose processes are those of the product: each runs in the namespace as a whole.
WITHIN = (
    "tests/integration/k8s/test_operator_runs.py::test_a_process_that_is_told_to_end_lets_another_lead",
    "tests/integration/serving/relay/test_relayed.py::test_requests_are_answered_through_the_relay_in_both_directions",
)


@pytest.mark.slow
@pytest.mark.parametrize("test", WITHIN)
def test_an_operator_and_a_relay(tmp_path: Path, test: str) -> None:
    own = environment(tmp_path)
    own.pop("JELLYBEAN_TEST_KUBECONFIG", None)
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    trace = traced([*pytest_here, f"--basetemp={tmp_path}/tests"], tmp_path, own, 280)
    assert trace.peers and trace.strangers() == []


PACKAGES = ("jellybean", "jellybean_agent")
SCRIPTS = ("digits/train.py", "ocr/make.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_telemetry_is_off_before_a_library_is_loaded(package: str) -> None:
    own = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    program = f"import sys, os, {package}; assert 'onnxruntime' not in sys.modules; print(dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True)
    assert all(f"'{name}': '{value}'" in done.stdout for name, value in TELEMETRY_OFF.items())


@pytest.mark.parametrize("variable", TELEMETRY_OFF)
def test_what_a_user_has_set_stays(variable: str) -> None:
    program = f"import os, jellybean, jellybean_agent; print(os.environ[{variable!r}])"
    own = {**os.environ, variable: "0"}
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_turns_it_off_first(script: str) -> None:
    """Scripts of examples that load onnxruntime import the package before, also when they are run by themselves."""
    lines = (EXAMPLES / script).read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from ")) and "__future__" not in line]
    assert imports[0].startswith("import jellybean"), imports[0]


def test_no_module_of_the_product_loads_a_library_before_its_package() -> None:
    """Packages that may load a library with telemetry turn it off in their own `__init__`."""
    loading = [
        path.relative_to(ROOT)
        for folder in ("jellybean", "edge_agent", "solver", "k8s", "protos")
        for path in (ROOT / folder).rglob("*.py")
        if "import onnxruntime" in path.read_text(encoding="utf-8")
        or "import torch" in path.read_text(encoding="utf-8")
    ]
    assert {path.parts[0] for path in loading} == {"jellybean", "edge_agent"}
