"""Write requirements/ci.txt: the exact versions in the environment that runs this (`make lock`).

With the argument `audit`: requirements/audit.txt, of an environment with the tools of `make audit` and `make sbom`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parents[2] / "requirements/ci.txt"
AUDIT_LOCK = LOCK.with_name("audit.txt")
# pyproject.toml pins these two, and their wheels differ by machine (CPU or CUDA).
ELSEWHERE = {"torch", "torchvision"}
# CUDA, which torch brings on some machines alone.
OF_TORCH = re.compile(r"(nvidia|cuda|triton$)")
HEAD = """\
# Exact versions of what `make` installs on Python 3.11: a new release of a dependency changes no test run.
# `make lock` writes this file anew. torch and torchvision are pinned in pyproject.toml.
"""
AUDIT_HEAD = """\
# Exact versions of pip-audit and cyclonedx-bom, and of what they need: `make audit`, `make sbom`.
# `make lock` writes this file anew.
"""


def lock(frozen: str, head: str = HEAD) -> str:
    """The lock file for the lines of `pip freeze`: without this project, and without torch and what it brings."""
    pins = []
    for line in frozen.splitlines():
        name, separator, version = line.partition("==")
        plain = name.lower().replace("_", "-")
        if separator and plain not in ELSEWHERE and not OF_TORCH.match(plain):
            pins.append(f"{name}=={version}")
    return head + "\n".join(sorted(pins, key=str.lower)) + "\n"


if __name__ == "__main__":
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    if sys.argv[1:] == ["audit"]:
        AUDIT_LOCK.write_text(lock(frozen, AUDIT_HEAD), encoding="utf-8")
    else:
        LOCK.write_text(lock(frozen), encoding="utf-8")
