"""Public surfaces: what a package offers exists, written down in the stub that type checkers read too."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from tests.tools.surfaces import SURFACES, listed_names, public_names, stub_of, stub_text

NEED_TORCH = ("jellybean.pipeline", "jellybean.training")  # some of what they offer


def test_the_stubs_list_what_other_rooms_import_and_nothing_else() -> None:
    """A stub that is out of date is written anew by `python -m tests.tools.surfaces`."""
    for surface, names in public_names().items():
        assert names, surface
        assert stub_of(surface).read_text(encoding="utf-8") == stub_text(names), surface


@pytest.mark.parametrize("surface", SURFACES)
def test_everything_offered_is_what_its_module_defines(surface: str) -> None:
    if surface in NEED_TORCH:
        pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
    package = import_module(surface)
    names = listed_names(surface)
    assert sorted(names) == sorted(package.__all__)
    for name, module in names.items():
        offered, defined = getattr(package, name), getattr(import_module(f"{surface}.{module}"), name)
        # A test may have loaded a module of steps anew from its source.
        assert offered is defined or (module == "steps" and _place(offered) == _place(defined))


def _place(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


@pytest.mark.slow
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
    code = f"import sys, {process}; print([name for name in ('highspy',) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["jellybean.cli.serving.certs", "jellybean.cli.kubernetes.render"])
def test_commands_that_talk_to_no_cluster_need_no_client_of_one(command: str) -> None:
    code = f"import sys, {command}; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["jellybean_solver", "jellybean_agent", "jellybean_k8s"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = import_module(name).Nothing
