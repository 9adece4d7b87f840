"""Reads layer profiles in PipeDream's text format.

A node line is `id -- name -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`. An indented line `a -- b` is an edge between the nodes with these ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver import SolverError
from jellybean_solver.pipeline import Layer, LayerGraph, layer_graph

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_INPUT = re.compile(r"Input\d*")
_NODE = re.compile(r"(\S+) -- (.*) -- (\w+=.*)")
HOW_TO_MAKE = "; make one: jellybean pipeline profile MODEL --out FILE"
_EDGE = re.compile(r"\s+(\S+) -- (\S+)\s*")
MAX_FILE_BYTES = 64 * 2**20
MAX_FIGURE = 1e30  # largest accepted time (ms) or size (bytes); sums of larger numbers could overflow


def read_profile(path: Path) -> LayerGraph:
    """The layers of a profile, without PipeDream's input nodes. DocumentError, with file and line, if malformed."""
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
            reason = "neither a layer (id -- name -- forward_compute_time=..., ...) nor an edge"
            raise _problem(path, number, reason)
    inputs = _input_nodes(layers, edges)
    computed = [(name, layer) for name, layer in layers.items() if name not in inputs]
    try:
        graph = layer_graph(computed, [(up, down) for up, down in edges if up not in inputs])
    except SolverError as error:
        raise _problem(path, None, str(error)) from error
    if not graph.layers:
        raise _problem(path, None, "has no layers" + HOW_TO_MAKE)
    return graph


def _input_nodes(layers: Mapping[str, Layer], edges: Sequence[tuple[str, str]]) -> set[str]:
    """The ids of PipeDream's input nodes, which stand for the model's arguments.

    Such a node is called `Input`, costs nothing and reads nothing. A layer of a model may have that name, too: what
    costs time or bytes, or reads another layer, is planned whatever it is called.
    """
    reading = {down for _, down in edges}
    return {
        name
        for name, layer in layers.items()
        if _INPUT.fullmatch(layer.name)
        and name not in reading
        and not (layer.compute_s or layer.activation_bytes or layer.parameter_bytes)
    }


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _problem(path, None, f"above {MAX_FILE_BYTES} bytes; a profile is smaller")
        return path.read_text(encoding="utf-8").split("\n")  # a name may have other separators
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "cannot be read").lower() if isinstance(error, OSError) else "not text"
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else reason
        raise _problem(path, None, reason + HOW_TO_MAKE) from error


def _problem(path: Path, line: int | None, message: str) -> DocumentError:
    return DocumentError([DocumentProblem(str(path), line, None, "", message)])


def _layer(name: str, text: str) -> Layer:
    """Parse a node line; a list of activation sizes (of several outputs) is summed. ValueError if malformed."""
    fields: dict[str, float] = {}
    for key, value in re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", text):
        try:
            fields[key] = sum(float(part) for part in re.split(r"[;,]", value.strip("[]")) if part.strip())
        except ValueError as error:
            raise ValueError(f"{key}={value} is no number") from error
    missing = [key for key in _FIELDS if key not in fields]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    wrong = [key for key in _FIELDS if not 0 <= fields[key] < MAX_FIGURE]
    if wrong:
        raise ValueError(f"{wrong[0]} is {fields[wrong[0]]}; it must be below {MAX_FIGURE:g} and not below 0")
    return Layer(name, fields[_FIELDS[0]] / 1e3, fields[_FIELDS[1]] / 1e3, fields[_FIELDS[2]], fields[_FIELDS[3]])
