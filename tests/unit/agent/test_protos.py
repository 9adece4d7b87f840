"""The committed stubs are what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import jellybean_protos
from tests.support.skips import NotInstalled


def test_stubs_are_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason=NotInstalled.GRPC_TOOLS)
    root = Path(jellybean_protos.__file__).parent.parent
    protos = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
    assert protos
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, *protos], check=True, timeout=60)
    made = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert len(made) == 3 * len(protos)
    stale = [path.name for path in made if path.read_bytes() != (root / path.relative_to(tmp_path)).read_bytes()]
    if stale and not _same_generator(made, root, tmp_path):
        pytest.skip("another version of grpcio-tools than the one that made the committed stubs")
    assert not stale, f"stale: {', '.join(stale)}; run `make protos`"


def _same_generator(made: list[Path], root: Path, made_in: Path) -> bool:
    """Generators write their version into every file; only stubs of one version can be compared."""

    def versions(path: Path) -> list[str]:
        return [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if "Python Version" in line or "_VERSION =" in line
        ]

    return all(versions(path) == versions(root / path.relative_to(made_in)) for path in made)
