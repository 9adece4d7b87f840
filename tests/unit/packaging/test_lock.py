"""The lock file: what it leaves out, and that it holds a version of every package that is declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools.lock import ELSEWHERE, LOCK, lock

ROOT = Path(__file__).resolve().parents[3]
MAKE_INSTALLS = ("all", "ocr")  # the extras that the targets of the Makefile install


def test_the_lock_has_no_torch_no_cuda_and_nothing_without_a_version() -> None:
    of_torch = ["torch==2.13.0+cpu", "nvidia-nccl-cu13==2.1", "triton==3.2"]
    frozen = ["numpy==2.4.6", *of_torch, "-e /src", "Aiohttp==3.14.5", "tritonclient==2.73.0"]
    assert [line for line in lock("\n".join(frozen)).splitlines() if not line.startswith("#")] == [
        "Aiohttp==3.14.5",
        "numpy==2.4.6",
        "tritonclient==2.73.0",
    ]


def test_every_declared_requirement_is_locked_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    locked = {canonicalize_name(name): version for name, version in pins.items()}
    requirements = [Requirement(text) for text in _declared(project)]
    assert len(requirements) > 40
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name not in ELSEWHERE:
            assert locked[name] in requirement.specifier, (
                f"{requirement}, but {locked[name]} is locked: run `make lock`"
            )


def _declared(project: dict[str, Any]) -> list[str]:
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    found = [*project["project"]["dependencies"], *groups["test-core"], *groups["test-torch"]]
    pending, visited = list(MAKE_INSTALLS), set()
    while pending:
        extra = pending.pop()
        if extra in visited:
            continue
        visited.add(extra)
        for text in extras[extra]:
            inner = re.fullmatch(r"jellybean-serving\[(.+)\]", text)
            if inner:
                pending += inner[1].split(",")
            else:
                found.append(text)
    return found
