"""Inputs for fuzzing: right ones with a few changes, by Hypothesis; kept ones; and the bound on memory.

A kept input is a file in tests/fuzz/seeds/FRONT: one that once broke something, or that leads where changes seldom do.
All of them run in each tier, as they are, and changes start from them too.
"""

from __future__ import annotations

import contextlib
import copy
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.paths import ROOT

SEEDS = ROOT / "tests/fuzz/seeds"
_MOST_CHANGES = 4
_NUMBERS: tuple[Any, ...] = (0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf"))
_TEXTS = ("", "\0", "\ud800", "\x1b[2J\n", "../../x", "é" * 200, "x" * 70_000)


def seeds(front: str) -> list[bytes]:
    """The kept inputs of a front, in the order of their names."""
    return [path.read_bytes() for path in sorted((SEEDS / front).glob("*"))]


@st.composite
def changed_bytes(draw: st.DrawFn, originals: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    """One of the originals with parts cut out, doubled or replaced by pieces of the protocol or any bytes."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, _MOST_CHANGES))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 24)))
        doubled = st.just(data[start:end] * 2)
        data = data[:start] + draw(st.sampled_from(pieces) | st.binary(max_size=9) | doubled) + data[end:]
    return data


def odd_values() -> st.SearchStrategy[Any]:
    """JSON values that few programs expect: numbers at the ends of types, strange texts, depth."""
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    return st.sampled_from([None, True, *_NUMBERS, *_TEXTS, [], {}, deep, [0] * 300, {"": None}])


@st.composite
def changed_json(draw: st.DrawFn, original: Any) -> Any:
    """A copy of a document with a few values replaced, removed, doubled or moved to another key."""
    document = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, _MOST_CHANGES))):
        places = list(_places(document))
        if places:
            _change(draw, *draw(st.sampled_from(places)))
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value below the document itself."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _change(draw: st.DrawFn, container: Any, key: Any) -> None:
    match draw(st.sampled_from(("replace", "replace", "remove", "double", "rename"))):
        case "remove":
            del container[key]
        case "double" if isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        case "rename" if isinstance(container, dict):
            container[draw(st.sampled_from([*container, *_TEXTS[:4]]))] = container.pop(key)
        case _:
            container[key] = draw(odd_values())


@contextlib.contextmanager
def at_most(mebibytes: float) -> Iterator[None]:
    """AssertionError if the context takes more memory of Python and numpy than this, even for a moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= mebibytes * 2**20, f"{peak / 2**20:.1f} MiB"
