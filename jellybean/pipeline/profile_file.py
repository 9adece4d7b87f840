"""Reads layer profiles in PipeDream's text format.

A node line: `id -- name -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`; an indented line: edge `a -- b`.
"""

from __future__ import annotations

import re
from pathlib import Path

from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver import SolverError
from jellybean_solver.pipeline import Layer, LayerGraph, layer_graph

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NODE = re.compile(r"(\S+) -- (.*) -- (\w+=.*)")
MAKE_ONE = "; make one: jellybean pipeline profile MODEL --out FILE"
_EDGE = re.compile(r"\s+(\S+) -- (\S+)\s*")
MOST_BYTES = 64 * 2**20
MOST_FIGURE = 1e30  # ms or bytes; sums of larger ones are no numbers any more


def read_profile(path: Path) -> LayerGraph:
    """The layers of a file, without its `Input` nodes. DocumentError with file and line for what is no profile."""
    lines = _lines(path)
    layers: dict[str, Layer] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if edge := _EDGE.fullmatch(line):
            edges.append((edge[1], edge[2]))
        elif node := _NODE.fullmatch(line):
            if node[1] in layers:
                raise _problem(path, number, f"layer {node[1]} stands there twice")
            try:
                layers[node[1]] = _layer(node[2], node[3])
            except ValueError as error:
                raise _problem(path, number, str(error)) from error
        else:
            told = "neither a layer (id -- name -- forward_compute_time=..., ...) nor an edge"
            raise _problem(path, number, told)
    inputs = {name for name, layer in layers.items() if layer.name.startswith("Input")}
    kept = [(name, layer) for name, layer in layers.items() if name not in inputs]
    try:
        graph = layer_graph(kept, [(up, down) for up, down in edges if up not in inputs and down not in inputs])
    except SolverError as error:
        raise _problem(path, None, str(error)) from error
    if not graph.layers:
        raise _problem(path, None, "has no layers" + MAKE_ONE)
    return graph


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _problem(path, None, f"above {MOST_BYTES} bytes; a profile is smaller")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "cannot be read").lower() if isinstance(error, OSError) else "not text"
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else reason
        raise _problem(path, None, reason + MAKE_ONE) from error


def _problem(path: Path, line: int | None, message: str) -> DocumentError:
    return DocumentError([DocumentProblem(str(path), line, None, "", message)])


def _layer(name: str, text: str) -> Layer:
    """Activation sizes of several outputs are written as a list; they count together. ValueError for what is wrong."""
    found: dict[str, float] = {}
    for key, value in re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", text):
        try:
            found[key] = sum(float(part) for part in re.split(r"[;,]", value.strip("[]")) if part.strip())
        except ValueError as error:
            raise ValueError(f"{key}={value} is no number") from error
    missing = [key for key in _FIELDS if key not in found]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    wrong = [key for key in _FIELDS if not 0 <= found[key] < MOST_FIGURE]
    if wrong:
        raise ValueError(f"{wrong[0]} is {found[wrong[0]]}; it must be below {MOST_FIGURE:g} and not below 0")
    return Layer(name, found[_FIELDS[0]] / 1e3, found[_FIELDS[1]] / 1e3, found[_FIELDS[2]], found[_FIELDS[3]])
