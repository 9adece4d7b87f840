"""Check that functions named in a document exist, without importing or running their modules.

Problems that show only when the module runs are reported when it is imported later.
"""

from __future__ import annotations

import ast
from pathlib import Path

from jellybean.quantities import InvalidValueError, did_you_mean, did_you_mean_file, quoted
from jellybean.user_modules import is_installed

_MAX_LISTED = 8
# A file that uses one of these names may bind other names dynamically.
_BINDERS = frozenset({"exec", "globals", "locals", "setattr", "vars"})


def check_reference(directory: Path, text: str) -> None:
    """Check `FILE.py:FUNCTION` in `directory`, or `MODULE:FUNCTION`. InvalidValueError if it does not exist."""
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        _check_module(directory, place, name)
        return
    path = directory / place
    if not path.is_file():
        siblings = [item.name for item in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise InvalidValueError(
            f"there is no file {quoted(place)}", did_you_mean_file(place, siblings) or f"looked in {path.parent}"
        )
    known = _bound_names(path)
    if known is not None and name not in known:
        defined = ", ".join(sorted(known)[:_MAX_LISTED]) or "nothing"
        raise InvalidValueError(
            f"{place} has no function {name!r}", did_you_mean(name, known) or f"it defines {defined}"
        )


def _check_module(directory: Path, place: str, name: str) -> None:
    """Check that the top-level package of MODULE is installed; looking for its submodules would import it."""
    try:
        found = is_installed(place.partition(".")[0])
    except (ValueError, ImportError):
        return  # the module is loaded but has no import spec, so it exists
    if not found:
        file = f"{place}.py"
        hint = f"did you mean '{file}:{name}'?" if (directory / file).is_file() else "install it, or name a file"
        raise InvalidValueError(f"there is no module {quoted(place)}", hint)


def _bound_names(path: Path) -> frozenset[str] | None:
    """Names bound by the file's top-level statements; None if names may be bound in other ways."""
    try:
        nodes: list[ast.AST] = list(ast.parse(path.read_bytes()).body)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the error is reported when the file is imported, with a better message
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
