"""Public surfaces: what a package offers exists, and the stub that type checkers read says the same."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["jellybean_agent", "jellybean_k8s"])
def test_a_lazy_surface_is_what_its_stub_says(name: str) -> None:
    package = import_module(name)
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text()
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(told) == package.__all__
    for public, module in told.items():
        assert getattr(package, public) is getattr(import_module(str(module)), public)


@pytest.mark.parametrize("name", ["jellybean_solver", "jellybean_solver.pipeline", "jellybean_agent", "jellybean_k8s"])
def test_everything_offered_exists_once(name: str) -> None:
    package = import_module(name)
    assert len(package.__all__) == len(set(package.__all__))
    for public in package.__all__:
        assert getattr(package, public) is not None


@pytest.mark.parametrize("name", ["jellybean_agent", "jellybean_k8s"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = import_module(name).Nothing
