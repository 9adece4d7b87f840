"""Public surfaces: what a package offers exists, and the stub that type checkers read says the same."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "name", ["jellybean", "jellybean_solver", "jellybean_agent", "jellybean_k8s", "jellybean.report"]
)
def test_a_lazy_surface_is_what_its_stub_says(name: str) -> None:
    package = import_module(name)
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    told = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(told) == package.__all__
    for public, module in told.items():
        assert getattr(package, public) is getattr(import_module(str(module)), public)


@pytest.mark.parametrize(
    "process",
    [
        "jellybean.serving.gateway_main",
        "jellybean.serving.local.keeper",
        "jellybean.cli.documents",
        "jellybean.cli.serving.infer",
        "jellybean.cli.serving.serve",
    ],
)
def test_processes_that_solve_nothing_import_no_solver(process: str) -> None:
    """It takes a third of a second, in each gateway, keeper and command."""
    code = f"import sys, {process}; print([name for name in ('highspy', 'pulp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["jellybean.cli.serving.certs", "jellybean.cli.kubernetes.render"])
def test_commands_that_talk_to_no_cluster_need_no_client_of_one(command: str) -> None:
    code = f"import sys, {command}; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def offered(name: str) -> list[str]:
    """Names of a surface: its `__all__`, or without one what it imports under an alias (`from m import A as A`)."""
    package = import_module(name)
    if hasattr(package, "__all__"):
        return list(package.__all__)
    body = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8")).body
    return [alias.asname for node in body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname]


@pytest.mark.parametrize("name", ["jellybean_solver", "jellybean_solver.pipeline", "jellybean_agent", "jellybean_k8s"])
def test_everything_offered_exists_once(name: str) -> None:
    names = offered(name)
    assert names
    assert len(names) == len(set(names))
    for public in names:
        assert getattr(import_module(name), public) is not None


def test_the_solver_offers_what_other_packages_import_or_its_users_are_shown() -> None:
    """No use of a name that is not offered, none offered that nobody uses."""
    root = Path(__file__).parents[2]
    outside = [
        path for folder in ("jellybean", "edge_agent", "k8s", "benchmarks") for path in (root / folder).rglob("*.py")
    ]
    imported = {
        alias.name
        for path in outside
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "jellybean_solver"
        for alias in node.names
    }
    shown = set(re.findall(r"`jellybean_solver\.(\w+)\(", (root / "docs" / "python.md").read_text(encoding="utf-8")))
    assert imported | shown == set(offered("jellybean_solver"))


@pytest.mark.parametrize("name", ["jellybean_solver", "jellybean_agent", "jellybean_k8s"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = import_module(name).Nothing
