"""Modules in the files of a user's project. They are importable by their names while the project is the current one.

Its own folder is on the path only while its code may run: libraries that are not installed must not be found there.

Dataclasses and processes that data loaders start import them so. Two projects may have files of the same name.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType

RENAMED = "jellybean_user_"  # prefix of a module whose file has the name of another loaded module


@dataclass
class _Project:
    """`files`: names of the modules whose files were loaded. `folders`: theirs, on sys.path while it is current.

    `modules`: what it has imported from these folders, while it is not current.
    """

    files: set[str] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)
    modules: dict[str, ModuleType] = field(default_factory=dict)

    def enter(self) -> None:
        sys.path += self.folders
        sys.modules.update(self.modules)

    def leave(self) -> None:
        sys.path[:] = [folder for folder in sys.path if folder not in self.folders]
        top = {name for name, module in sys.modules.items() if "." not in name and self._has(name, module)}
        self.modules = {name: sys.modules[name] for name in sys.modules if name.partition(".")[0] in top}
        for name in self.modules:
            del sys.modules[name]

    def _has(self, name: str, module: ModuleType) -> bool:
        spec = getattr(module, "__spec__", None)
        inside = (spec.submodule_search_locations or ()) if spec is not None else ()
        places = [*inside, *([spec.origin] if spec is not None and spec.origin and not inside else [])]
        return name in self.files or any(str(Path(place).parent) in self.folders for place in places)


@dataclass
class _Projects:
    """The projects of this process, by their directories."""

    known: dict[Path, _Project] = field(default_factory=dict)
    current: _Project = field(default_factory=_Project)


_PROJECTS = _Projects()


def enter_project(directory: Path) -> None:
    """Make the modules of the project in `directory` importable, and those of other projects not."""
    project = _PROJECTS.known.setdefault(directory.resolve(), _Project())
    if project is not _PROJECTS.current:
        _PROJECTS.current.leave()
        project.enter()
        _PROJECTS.current = project


def open_project_folder(directory: Path) -> None:
    """`enter_project`, and all modules in its folder are importable, after installed ones."""
    enter_project(directory)
    _add_folder(str(directory.resolve()))


def _add_folder(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)
        _PROJECTS.current.folders.append(folder)


def is_installed(name: str) -> bool:
    """True if a top-level module can be imported without any project. ImportError or ValueError as of find_spec."""
    _PROJECTS.current.leave()
    try:
        return importlib.util.find_spec(name) is not None
    finally:
        _PROJECTS.current.enter()


def import_file(path: Path) -> ModuleType:
    """The module of an existing file of the current project, run once per version of the file.

    Its model and its data see the same classes, and register operators once.
    """
    changed = path.stat()
    return _run_file(path.resolve(), (changed.st_mtime_ns, changed.st_size))


@lru_cache(maxsize=64)
def _run_file(path: Path, _version: tuple[int, int]) -> ModuleType:
    project, folder = _PROJECTS.current, str(path.parent)
    is_free = path.stem in project.files or path.stem not in sys.modules
    name = path.stem if is_free else f"{RENAMED}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    _add_folder(folder)
    before = sys.modules.get(name)
    sys.modules[name] = module
    sys.path.insert(0, folder)  # before other modules of the names of those beside it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    finally:
        sys.path.remove(folder)
    project.files.add(name)
    return module
