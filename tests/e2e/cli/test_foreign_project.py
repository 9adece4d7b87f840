"""A project from elsewhere, whose links lead to files of its reader.

No command reads or writes them.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

from jellybean.documents.layout import document_files
from jellybean_protos import plan_format
from tests.support.command_line import jellybean, jellybean_process
from tests.support.scales_project import make_scales_project

PRECIOUS = "precious\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "scales"
    folder.mkdir()
    make_scales_project(folder)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text(PRECIOUS, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("plan.json", ["plan"]),
        (".jellybean/plan-record.json", ["plan"]),
        (".jellybean/report.db", ["plan"]),
        (".jellybean/report.db", ["report"]),
        (".jellybean/up.lock", ["up", "--detach"]),
        (".jellybean/logs/gateway.log", ["up", "--detach"]),
        (".jellybean/spool.db-wal", ["up", "--detach"]),
        (".jellybean/run.json", ["down"]),
        (".jellybean/run.lock", ["down"]),
        (".jellybean/ledger.db", ["cost"]),
        (".jellybean/certs/ca/tls.key", ["certs"]),
        ("frontier.svg", ["frontier"]),
        ("workflow.yaml", ["validate", "--fix"]),
    ],
)
def test_no_command_writes_through_a_link(project: Path, victim: Path, place: str, command: Sequence[str]) -> None:
    file = project / place
    if file.exists():
        victim.write_text(file.read_text(encoding="utf-8").replace("sha256: ", "sha256: 00", 1), encoding="utf-8")
        file.unlink()
    before = victim.read_bytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(victim)
    name, *options = command
    done = jellybean(name, str(project), *options, status=(1, 2))
    assert f"{file} is a link to {victim}: JellyBean writes through no link in a project" in done.stderr
    assert victim.read_bytes() == before
    assert {path.name for path in victim.parent.iterdir()} == {"scales", "victim"}


@pytest.mark.parametrize("path", ["../victim", "/etc/hostname", "models/../../victim", "link"])
@pytest.mark.parametrize("written", ["models/two.onnx", "data/heldout.npz"])
def test_no_path_of_a_document_leaves_the_project(project: Path, victim: Path, written: str, path: str) -> None:
    suffix = Path(written).suffix
    (project / f"link{suffix}").symlink_to(victim.rename(victim.with_suffix(suffix)))
    workflow = project / "workflow.yaml"
    workflow.write_text(workflow.read_text(encoding="utf-8").replace(written, f"{path}{suffix}"), encoding="utf-8")
    for command in ("validate", "plan", "up"):
        done = jellybean(command, str(project), status=2)
        assert "is outside the project folder" in done.stderr or "is not a relative path" in done.stderr


def test_no_file_of_sites_leaves_the_project(project: Path, victim: Path) -> None:
    fleet = project / "infrastructure.yaml"
    fleet.write_text(f"{fleet.read_text(encoding='utf-8')}sites: {{edge: sites.csv}}\n", encoding="utf-8")
    (project / "sites.csv").symlink_to(victim)
    done = jellybean("validate", str(project), status=2)
    assert "'sites.csv' is outside the project folder: it is a link to" in done.stderr
    assert "precious" not in done.stderr


def test_no_workflow_of_several_is_a_link_out_of_the_project(project: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    (several / "workflows").mkdir(parents=True)
    (several / "infrastructure.yaml").write_bytes((project / "infrastructure.yaml").read_bytes())
    (several / "workflows/scales").symlink_to(project)
    before = sorted(path.name for path in project.rglob("*"))
    for command in (["validate", "--fix"], ["profile"], ["plan"]):
        done = jellybean(command[0], str(several), *command[1:], status=2)
        assert "leads out of" in done.stderr
    assert sorted(path.name for path in project.rglob("*")) == before


def test_no_file_that_init_writes_is_a_link(tmp_path: Path, victim: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "workflow.yaml").symlink_to(tmp_path / "nowhere")
    jellybean("init", "--blank", str(folder), status=2)
    assert not (tmp_path / "nowhere").exists()
    assert victim.read_text(encoding="utf-8") == PRECIOUS


def test_names_in_documents_send_no_escape_codes(project: Path) -> None:
    workflow = project / "workflow.yaml"
    text = workflow.read_text(encoding="utf-8").replace("name: scales", 'name: "a\\e[2Jb\\u202e"')
    workflow.write_text(text, encoding="utf-8")
    for options in ([], ["--json"]):
        done = jellybean("validate", str(project), *options, status=2)
        assert all(character == "\n" or character.isprintable() for character in done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("workflow.yaml", ["validate"]),
        ("infrastructure.yaml", ["plan"]),
        ("profiles.yaml", ["simulate"]),
        ("plan.json", ["up", "--detach"]),
        ("kubernetes.yaml", ["render"]),
        ("training.yaml", ["train"]),
    ],
)
@pytest.mark.parametrize("is_pipe", [True, False])
def test_no_document_is_a_pipe_or_a_device(project: Path, place: str, command: Sequence[str], is_pipe: bool) -> None:
    """A pipe would be waited for, and /dev/zero be read until the memory is full."""
    file = project / place
    file.unlink(missing_ok=True)
    if is_pipe:
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    name, *options = command
    done = jellybean(name, str(project), *options, status=(1, 2))
    assert "is a pipe or a device, not a file" in done.stderr


def test_no_data_file_of_a_model_is_a_pipe(project: Path) -> None:
    model = project / "models/two.onnx"
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="two.data", size_threshold=0)
    model.with_name("two.data").unlink()
    os.mkfifo(model.with_name("two.data"))
    done = jellybean("validate", str(project), status=2)
    assert "is a pipe or a device, not a file" in done.stderr


@pytest.mark.parametrize("command", [["up", "--detach"], ["certs"]])
@pytest.mark.parametrize("named", ["box-1", "edge", "server-1"])
@pytest.mark.parametrize("name", ["../../../owned", "PROJECT/../owned", "..", "", "a\0b"])
def test_no_name_in_a_plan_leads_out_of_the_project(
    project: Path, victim: Path, named: str, name: str, command: Sequence[str]
) -> None:
    """Logs are named after workers, and certificates: `up` would empty a file elsewhere, whose name ends in .log."""
    jellybean("plan", str(project))
    text = (project / "plan.json").read_text(encoding="utf-8")
    record = project / ".jellybean/plan.key"
    before = json.loads(text)["hash"]
    document = json.loads(text.replace(json.dumps(named), json.dumps(name.replace("PROJECT", str(project)))))
    document["hash"] = plan_format.content_hash(document)
    (project / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    record.write_text(record.read_text(encoding="utf-8").replace(before, document["hash"]), encoding="utf-8")
    done = jellybean(command[0], str(project), *command[1:], status=1)
    assert "is no name, as files are named by it: plan again; run: jellybean plan" in done.stderr
    assert {path.name for path in victim.parent.iterdir()} == {"scales", "victim"}


def test_no_settings_of_matplotlib_come_from_a_project(tmp_path: Path) -> None:
    """They name a module to import, programs to run, and what pictures look like."""
    lines = "backend: module://evil\ntext.usetex: True\nsavefig.facecolor: red\n"
    (tmp_path / "matplotlibrc").write_text(lines, encoding="utf-8")
    code = (
        "import os; from jellybean.display import load_matplotlib; m = load_matplotlib(); "
        "print(os.getcwd(), m.rcParams['text.usetex'], m.rcParams['savefig.facecolor'], 'evil' in m.get_backend())"
    )
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "none"), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path), "False", "auto", "False"]


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750])
def test_a_state_folder_that_came_with_the_project_is_closed_to_others(project: Path, mode: int) -> None:
    """git makes its folders open to all: requests in the spool would be, too."""
    state = project / ".jellybean"
    state.mkdir()
    state.chmod(mode)
    jellybean("plan", str(project))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_project_without_links_is_as_any(project: Path) -> None:
    jellybean("validate", str(project))
    jellybean("plan", str(project))
    assert all(file.is_file() for file in document_files(project).values())


@pytest.mark.parametrize("run", [jellybean, pytest.param(jellybean_process, marks=pytest.mark.slow)])
def test_no_code_of_a_project_runs_unless_it_is_allowed(
    project: Path, tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Neither of a function that it names, nor of a file that some program reads by its name."""
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\n"
    ports = '{"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))}'
    step = f"from jellybean_agent import step\n\n@step(inputs={ports})\ndef run(x):\n    return {{'y': x}}\n"
    for name in ("boom.py", "sitecustomize.py", "conftest.py", "numpy.py", "onnx.py"):
        (project / name).write_text(code + step, encoding="utf-8")
    (project / ".env").write_text("JELLYBEAN_LOG=x\nPYTHONSTARTUP=boom.py\n", encoding="utf-8")
    fleet, workflow = project / "infrastructure.yaml", project / "workflow.yaml"
    fleet.write_text(fleet.read_text(encoding="utf-8").replace("count: 1", "count: 1, speed: 1"), encoding="utf-8")
    lines = workflow.read_text(encoding="utf-8").splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if "three: {model" in line)
    lines[place] = '    variants: {three: {python: "boom:run"}}\n'
    workflow.write_text("".join(lines), encoding="utf-8")
    for command, status in (("validate", 0), ("plan", 0), ("up", 2), ("profile", 2), ("down", 1)):
        done = run(command, str(project), status=status)
        assert not ran.exists(), command
        assert status < 2 or "--allow-python boom:run" in done.stderr


@pytest.mark.parametrize("place", ["training", "training/checkpoints", "training/model.safetensors"])
def test_no_training_writes_or_deletes_behind_a_link(tmp_path: Path, place: str) -> None:
    pytest.importorskip("torch")
    project, theirs = tmp_path / "trained", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "epoch-1").mkdir()
    (project / place).parent.mkdir(parents=True)
    (project / place).symlink_to(theirs)
    (project / "net.py").write_text(
        "import torch\n\ndef model():\n    return torch.nn.Linear(2, 2)\n\n"
        "def data():\n    rows = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)\n"
        "    return {'train': rows, 'test': rows}\n",
        encoding="utf-8",
    )
    text = "kind: Training\nmodel: net.py:model\ndata: net.py:data\nepochs: 1\nbatch: 2\n"
    text += "optimizer: {name: sgd, lr: 0.1}\n"
    (project / "training.yaml").write_text(text, encoding="utf-8")
    done = jellybean("train", str(project), "--fresh", status=(1, 2))
    assert f"{project / place} is a link to {theirs}" in done.stderr
    assert [path.name for path in theirs.iterdir()] == ["epoch-1"]


@pytest.mark.parametrize("place", ["plan.json", ".jellybean/plan-record.json", ".jellybean/run.json"])
def test_no_file_of_a_command_ends_it_by_its_depth(project: Path, place: str) -> None:
    (project / ".jellybean").mkdir(mode=0o700)
    (project / place).write_text("[" * 100_000, encoding="utf-8")
    for command in ("validate", "plan", "down"):
        jellybean(command, str(project), status=(0, 1, 2))
