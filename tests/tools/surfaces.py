"""Writes the public surfaces: the `__init__.pyi` of each package, from which lazy_loader loads names on first use.

    python -m tests.tools.surfaces

A name is public if another room of `jellybean`, another package or a benchmark imports it, if docs/python.md shows it,
or if it is public already and a test imports it from the surface.
So a module may move inside its room: the stub is written anew, and nothing outside the room changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "jellybean": ROOT / "jellybean",
    "jellybean_solver": ROOT / "solver" / "jellybean_solver",
    "jellybean_agent": ROOT / "edge_agent" / "jellybean_agent",
    "jellybean_k8s": ROOT / "k8s" / "jellybean_k8s",
}
SURFACES = (
    "jellybean.bench",
    "jellybean.display",
    "jellybean.documents",
    "jellybean.frontier",
    "jellybean.ledger",
    "jellybean.operator",
    "jellybean.pipeline",
    "jellybean.planning",
    "jellybean.profiler",
    "jellybean.report",
    "jellybean.serving",
    "jellybean.training",
    "jellybean.whatif",
    "jellybean_agent",
    "jellybean_k8s",
    "jellybean_solver",
    "jellybean_solver.pipeline",
)

_IMPORT = re.compile(r"^ *from (jellybean[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as \w+)?")
_COMMENT = re.compile(r"#.*")


def surface_of(module: str) -> str | None:
    """The innermost surface that a module lies below, None for a module of no surface."""
    above = [surface for surface in SURFACES if module == surface or module.startswith(f"{surface}.")]
    return max(above, key=len, default=None)


def folder_of(module: str) -> Path:
    """Where the files of a package or module lie."""
    package, *parts = module.split(".")
    return PACKAGES[package].joinpath(*parts)


def stub_of(surface: str) -> Path:
    return folder_of(surface) / "__init__.pyi"


def public_names() -> dict[str, dict[str, str]]:
    """By surface: public name -> module that defines it, relative to the surface.

    Left out are names that two modules of a surface define, and those of a direct submodule: `from surface import name`
    would be ambiguous.
    """
    modules: dict[str, dict[str, set[str]]] = {surface: defaultdict(set) for surface in SURFACES}
    for importer, module, name in _imports_of_names():
        surface = surface_of(module)
        if surface is None or surface == importer or name.startswith("_") or module == surface:
            continue
        modules[surface][name].add(_defining_module(module, name))
    _add_shown(modules)
    return {
        surface: {
            name: next(iter(places)).removeprefix(f"{surface}.")
            for name, places in sorted(names.items())
            if len(places) == 1 and not _is_submodule(surface, name)
        }
        for surface, names in modules.items()
    }


def stub_text(names: dict[str, str]) -> str:
    lines = sorted((module, name) for name, module in names.items())
    return "".join(f"from .{module} import {name} as {name}\n" for module, name in lines)


def _imports_of_names() -> Iterator[tuple[str | None, str, str]]:
    """Surface of the importing file (None outside), module that is imported from, name; through surfaces as well."""
    listed = {surface: listed_names(surface) for surface in SURFACES}
    for path in _importing_files():
        importer = surface_of(_module_of(path))
        for module, name in _imported_names(path):
            if _is_submodule(module, name):
                continue
            relative = listed.get(module, {}).get(name)
            if relative is None and path.is_relative_to(ROOT / "tests"):
                continue
            yield importer, f"{module}.{relative}" if relative else module, name


@cache
def _imported_names(path: Path) -> tuple[tuple[str, str], ...]:
    """Module and name of each `from module import name` of a product module; as text, since parsing takes seconds."""
    text = path.read_text(encoding="utf-8")
    return tuple(
        (module, name)
        for module, bracketed, plain in _IMPORT.findall(text)
        if module.split(".")[0] in PACKAGES
        for name in _NAME.findall(_COMMENT.sub("", bracketed or plain))
    )


def _add_shown(modules: dict[str, dict[str, set[str]]]) -> None:
    """Names that the reference of the Python API shows."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for surface in SURFACES:
        listed = listed_names(surface)
        for name in re.findall(rf"`{re.escape(surface)}\.(\w+)\(", text):
            if name in listed:
                modules[surface][name].add(_defining_module(f"{surface}.{listed[name]}", name))


def listed_names(surface: str) -> dict[str, str]:
    """What the stub lists today: name -> module relative to the surface."""
    if not stub_of(surface).exists():
        return {}
    lines = re.findall(r"from \.([\w.]+) import \w+ as (\w+)", stub_of(surface).read_text(encoding="utf-8"))
    return {name: module for module, name in lines}


def _defining_module(module: str, name: str) -> str:
    """The module in which a name is defined, as other modules may import it and be imported from."""
    path = folder_of(module).with_suffix(".py")
    if not path.exists():
        path = folder_of(module) / "__init__.py"
    for origin, imported in _imported_names(path):
        if imported == name and surface_of(origin) == surface_of(module) and not _is_submodule(origin, name):
            return _defining_module(origin, name)
    return module


@cache
def _is_submodule(module: str, name: str) -> bool:
    folder = folder_of(module)
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def _importing_files() -> list[Path]:
    folders = [*PACKAGES.values(), ROOT / "benchmarks", ROOT / "tests"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def _module_of(path: Path) -> str:
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join((package, *(part for part in parts if part != "__init__")))
    return path.relative_to(ROOT).parts[0]


if __name__ == "__main__":
    for surface_name, public in public_names().items():
        stub_of(surface_name).write_text(stub_text(public), encoding="utf-8")
        print(f"{surface_name}: {len(public)} names")
