"""What a program sees that imports a name whose modules are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "name", "missing", "extra"),
    [
        ("jellybean.documents", "load_project", "pydantic", "plan"),
        ("jellybean_solver", "solve", "numpy", "agent"),
        ("jellybean_k8s", "Cluster", "kubernetes", "k8s"),
    ],
)
def test_the_extra_of_a_missing_module_is_named(module: str, name: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from {module} import {name}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"{module}.{name}: {missing} is not installed; the extra `{extra}` brings it: pip install" in ran.stderr
