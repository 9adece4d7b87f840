"""The wheel in a new environment, beside tritonclient and kserve: it installs, and their clients call a gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
PACKAGES = ("jellybean", "jellybean_agent", "jellybean_k8s", "jellybean_protos", "jellybean_solver")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what is committed or staged: a build takes along what lies in examples/, such as plans."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["xargs", "-0", "cp", "--parents", "-t", source], cwd=ROOT, input=files, check=True)
    run(UV, "build", "-q", "--system-certs", "--wheel", "--out-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel, tritonclient and kserve."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    clients = ("tritonclient[grpc,http]", "kserve")
    jellybean = f"jellybean-serving[all] @ {wheel.as_uri()}"
    run(UV, "pip", "install", "-q", "--system-certs", "--python", environment / "bin/python", jellybean, *clients)
    return environment / "bin"


@pytest.fixture(scope="module")
def served(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, int]]:
    """A project that is served by that environment, and its ports for gRPC and HTTP."""
    folder = tmp_path_factory.mktemp("project") / "my-digits"
    port, http_port = free_port(), free_port()
    run(commands / "jellybean", "init", "digits", folder)
    run(commands / "jellybean", "plan", folder)
    ports = (f"--port={port}", f"--http-port={http_port}")
    run(commands / "jellybean", "up", "--detach", folder, *ports, "--insecure")
    yield folder, port, http_port
    run(commands / "jellybean", "down", folder)


def run(*command: str | Path) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_packages_typed_and_the_examples_that_are_committed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name for name in names if name.startswith("jellybean/examples/")} == {
        f"jellybean/{name}" for name in files.split()
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    source = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    surfaces = {re.sub(r"^(solver|protos|edge_agent|k8s)/", "", name) for name in source if name.endswith(".pyi")}
    assert surfaces <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_version_is_the_same_everywhere(wheel: Path, commands: Path) -> None:
    version = wheel.name.split("-")[1]
    assert run(commands / "jellybean", "--version") == f"jellybean {version}\n"
    code = "import jellybean, os; print(jellybean.__version__, os.path.dirname(jellybean.__file__))"
    printed, folder = run(commands / "python", "-P", "-c", code).split()
    assert printed == version
    assert Path(folder).is_relative_to(commands.parent)


def test_the_environment_is_consistent(commands: Path) -> None:
    run(UV, "pip", "check", "--python", commands / "python")
    code = "import google.protobuf, grpc; print(google.protobuf.__version__)"
    assert int(run(commands / "python", "-c", code).split(".")[0]) == 6  # kserve and tritonclient allow no newer one


@pytest.mark.parametrize(
    ("first_import", "answers"), [("tritonclient.grpc", 1), ("tritonclient.http", 1), ("kserve", 2)]
)
def test_the_documented_clients_read_what_ours_reads(
    commands: Path, served: tuple[Path, int, int], first_import: str, answers: int
) -> None:
    folder, port, http_port = served
    code = textwrap.dedent(f"""
        import numpy as np
        from jellybean.serving.client import Client
        with np.load("{folder}/data/heldout.npz") as data, Client.of("{folder}") as client:
            print("read", client.infer({{"strip": data["strips"][:1]}})["number"])
    """)
    ours = run(commands / "python", "-c", code)
    assert re.fullmatch(r"read \[\d+\]\n", ours)
    theirs = example(first_import).replace("my-digits", str(folder))
    theirs = theirs.replace(":8001", f":{port}").replace(":8000", f":{http_port}")
    assert run(commands / "python", "-c", theirs) == ours * answers


def example(first_import: str) -> str:
    """The block of docs/inference.md that imports a client."""
    text = (ROOT / "docs/inference.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^ {4}.*\n|^\n)+", text, re.MULTILINE)
    pattern = rf"^(import|from) {re.escape(first_import)}\b"
    (block,) = [block for block in map(textwrap.dedent, blocks) if re.search(pattern, block, re.MULTILINE)]
    assert "127.0.0.1:800" in block
    return block
