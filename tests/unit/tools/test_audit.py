"""Scanning of dependencies, and the bill of materials: what is asked, what is told, and what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.skips import Absent
from tests.tools.audit import NOT_ASKED, audit, findings, pins
from tests.tools.lock import AUDIT_HEAD, AUDIT_LOCK, lock

TOOL = ROOT / ".venv-audit/bin/cyclonedx-py"


def test_every_pin_of_the_repository_is_scanned() -> None:
    found = pins()
    locked = [line for line in (ROOT / "requirements/ci.txt").read_text(encoding="utf-8").splitlines() if "==" in line]
    assert set(locked) <= set(found)
    assert {line.partition("==")[0] for line in found} >= {"torch", "torchvision", "grpcio-tools", "pip-audit"}


def test_a_finding_names_package_advisory_and_remedy() -> None:
    vulnerabilities = [
        {"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"], "aliases": [], "description": ""},
        {"id": "GHSA-2", "fix_versions": [], "aliases": [], "description": ""},
    ]
    report = {
        "dependencies": [{"name": "a", "version": "2.0", "vulns": vulnerabilities}, {"name": "b", "version": "1"}]
    }
    assert list(findings(report)) == ["a 2.0: PYSEC-1, mended in 2.1, 3.0", "a 2.0: GHSA-2, mended in no version yet"]


def test_a_service_that_cannot_be_asked_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("false") == NOT_ASKED
    assert "the advisory service cannot be asked: it ended with status 1" in capsys.readouterr().out


def test_the_tools_are_pinned() -> None:
    text = AUDIT_LOCK.read_text(encoding="utf-8")
    assert text == lock(text, AUDIT_HEAD)
    assert {"pip-audit", "cyclonedx-bom"} <= {line.partition("==")[0] for line in text.splitlines()}


@pytest.mark.slow
def test_a_bill_of_materials_is_valid_and_names_what_is_installed(tmp_path: Path) -> None:
    """Of this environment, by the tool of `make sbom`, which checks it against the schema of CycloneDX."""
    if not TOOL.exists():
        pytest.skip(f"{Absent.SBOM_TOOL}")
    file = tmp_path / "sbom.cdx.json"
    options = [
        "--validate",
        "--output-reproducible",
        "--spec-version",
        "1.6",
        "--pyproject",
        str(ROOT / "pyproject.toml"),
    ]
    command = [
        str(TOOL),
        "environment",
        *options,
        "--output-format",
        "JSON",
        "--output-file",
        str(file),
        sys.executable,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    bill = json.loads(file.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "jellybean-serving")
    components = {component["name"]: component for component in bill["components"]}
    assert {"grpcio", "numpy", "onnxruntime", "protobuf"} <= set(components)
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
