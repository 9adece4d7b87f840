"""Scan the locked dependencies for published vulnerabilities (`make audit`), by pip-audit.

    python -m tests.tools.audit PIP_AUDIT

Exit status 0: none is known. 1: some are, which are printed. 3: the service that publishes them could not be asked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOUND, NOT_ASKED = 1, 3
_OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json")
_PIN = re.compile(r"^[A-Za-z0-9._-]+==\S+$")


def pins() -> list[str]:
    """What the files in requirements/ pin, and what pyproject.toml pins in their place."""
    files = sorted((ROOT / "requirements").glob("*.txt"))
    lines = [line.strip() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    pinned_in_project = re.findall(
        r'"(torch(?:vision)?==[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    return sorted({line for line in (*lines, *pinned_in_project) if _PIN.match(line)})


def findings(report: dict[str, Any]) -> Iterator[str]:
    """A line for each vulnerability in pip-audit's report, with the versions that mend it."""
    for package in report["dependencies"]:
        for one in package.get("vulns", ()):
            mended = ", ".join(one["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {one['id']}, mended in {mended}"


def audit(program: str) -> int:
    """Scan all pins, and print what was found; the exit status."""
    reports = []
    for part in _without_conflicts(pins()):
        report, reason = _scanned(program, part)
        if report is None:
            print(f"audit: the advisory service cannot be asked: {reason}: try again where a network reaches it")
            return NOT_ASKED
        reports.append(report)
    lines = sorted({line for report in reports for line in findings(report)})
    count = sum(len(report["dependencies"]) for report in reports)
    print("\n".join(lines) or f"audit: no known vulnerability in {count} packages")
    return FOUND if lines else 0


def _scanned(program: str, part: list[str]) -> tuple[dict[str, Any] | None, str]:
    """pip-audit's report of these pins; without one, why there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(part) + "\n")
        file.flush()
        command = [program, "--requirement", file.name, *_OPTIONS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        return None, lines[-1][:200]


def _without_conflicts(lines: list[str]) -> list[list[str]]:
    """The pins in as few parts as have each package once."""
    parts: list[dict[str, str]] = []
    for line in lines:
        name = line.partition("==")[0].lower().replace("_", "-")
        part = next((part for part in parts if name not in part), None)
        if part is None:
            parts.append(part := {})
        part[name] = line
    return [list(part.values()) for part in parts]


if __name__ == "__main__":
    sys.exit(audit(sys.argv[1]))
