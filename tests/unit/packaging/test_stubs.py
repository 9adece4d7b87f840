"""The committed stubs are what the pinned compiler makes of the .proto files, and old enough for the lower bounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.skips import NotInstalled

ROOT = Path(__file__).resolve().parents[3]
PROTOS = ROOT / "protos"
COMPILER = Path(sys.prefix) / "protoc"  # where `make` installs requirements/protoc.txt
STUBS = sorted(path for path in PROTOS.rglob("*_pb2*.py*") if path.suffix in (".py", ".pyi"))


@pytest.mark.skipif(not COMPILER.is_dir(), reason=NotInstalled.STUBS_COMPILER)
def test_stubs_are_fresh(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *protos],
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(COMPILER)},
    )
    fresh = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(fresh) == 3 * len(protos)
    assert sorted(PROTOS / path for path in fresh) == STUBS
    stale = sorted(str(path) for path, content in fresh.items() if (PROTOS / path).read_bytes() != content)
    assert not stale, f"stale: {', '.join(stale)}; run `make protos`"


@pytest.mark.parametrize(
    ("package", "written"),
    [("protobuf", r"# Protobuf Python Version: ([\d.]+)"), ("grpcio", r"GRPC_GENERATED_VERSION = '([\d.]+)'")],
)
def test_the_lower_bounds_are_the_versions_that_the_stubs_need(package: str, written: str) -> None:
    """A runtime older than the generated code refuses it when it is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [match[1] for text in project["dependencies"] if (match := re.match(rf"{package}>=([\d.]+),", text))]
    versions = {found for path in STUBS for found in re.findall(written, path.read_text(encoding="utf-8"))}
    assert {_numbers(version) for version in versions} == {_numbers(bound)}


def test_protobuf_promises_to_run_the_stubs_up_to_the_upper_bound() -> None:
    """Generated code runs on the runtimes of its own major version and of the next one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bounds,) = [re.findall(r"\d+", text) for text in project["dependencies"] if text.startswith("protobuf")]
    lower, upper = int(bounds[0]), int(bounds[-1])
    assert upper == lower + 2


def _numbers(version: str) -> tuple[int, ...]:
    """A version to compare: without trailing zeros, so that 6.30 is 6.30.0."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
