"""Functions that a document names, looked for without running the files they stand in: a word that is wrong is told
with the document's other problems. What only running a file can tell is left to whoever loads it.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from jellybean.documents.schema.units import UnitError, close, shown

_MOST_NAMED = 8
_BINDERS = frozenset({"exec", "globals", "locals", "setattr", "vars"})  # may bind names that no statement shows


def check_reference(directory: Path, text: str) -> None:
    """`FILE.py:FUNCTION` in `directory`, or `MODULE:FUNCTION`. UnitError when it is not there."""
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        _check_module(directory, place, name)
        return
    path = directory / place
    if not path.is_file():
        beside = [item.name for item in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UnitError(f"there is no file {shown(place)}", close(path.name, beside) or f"looked in {path.parent}")
    known = _bound(path)
    if known is not None and name not in known:
        there = ", ".join(sorted(known)[:_MOST_NAMED]) or "nothing"
        raise UnitError(f"{place} has no function {name!r}", close(name, known) or f"it defines {there}")


def _check_module(directory: Path, place: str, name: str) -> None:
    """Only the first part is looked for: looking further would run it."""
    try:
        found = importlib.util.find_spec(place.partition(".")[0]) is not None
    except (ValueError, ImportError):
        return  # one that is there already and does not say from where
    if not found:
        file = f"{place}.py"
        hint = f"did you mean '{file}:{name}'?" if (directory / file).is_file() else "install it, or name a file"
        raise UnitError(f"there is no module {shown(place)}", hint)


def _bound(path: Path) -> frozenset[str] | None:
    """Names that the file's own statements bind; None where they do not tell all."""
    try:
        nodes: list[ast.AST] = list(ast.parse(path.read_bytes()).body)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # importing it says more
    names = set[str]()
    while nodes:
        node = nodes.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                if any(isinstance(inner, ast.Global) for inner in ast.walk(node)):
                    return None
                continue
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Name(id=word) if word in _BINDERS:
                return None
            case ast.Attribute(attr="modules"):  # sys.modules
                return None
            case ast.MatchAs(name=str(word)) | ast.MatchStar(name=str(word)):
                names.add(word)
        nodes += ast.iter_child_nodes(node)
    return None if names & {"*", "__getattr__"} else frozenset(names)
