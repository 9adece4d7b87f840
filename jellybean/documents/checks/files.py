"""Checks of the files that documents name: models by content, held-out arrays by header; none outside the project."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from jellybean.documents.checks.names import Workflow
from jellybean.documents.checks.tensors import Model, ModelError, Port, Tensor, batch_problem, misfits, read_model
from jellybean.documents.flow import Flow
from jellybean.documents.schema.models import VariantSpec
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.units import UnitError, close, shown
from jellybean_agent import (
    AgentError,
    TensorPort,
    describe_error,
    find_module_source,
    split_function_name,
    step_signature,
)
from jellybean_solver import Edge, EdgeKind

_CHUNK = 2**20

Models = Mapping[str, Mapping[str, Model]]  # operator -> variant -> what its file takes and gives


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an .npz says of one array without reading it."""

    shape: tuple[int, ...]
    dtype: str


def inside(directory: Path, text: str) -> Path:
    """The path of a file of the project. UnitError when it lies elsewhere, also by a symbolic link."""
    if "\0" in text or "\\" in text or PurePosixPath(text).is_absolute():
        raise UnitError(f"{shown(text)} is no relative path", "write it relative to the project's folder, with '/'")
    path = directory / text
    try:
        within = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError) as error:
        raise UnitError(f"{shown(text)} cannot be resolved: {describe_error(error)}") from error
    if not within:
        raise UnitError(f"{shown(text)} lies outside the project's folder", "copy the file into it")
    if not path.is_file():
        near = close(path.name, [item.name for item in path.parent.iterdir()]) if path.parent.is_dir() else ""
        raise UnitError(f"there is no file {shown(text)}", near or f"looked in {path.parent}")
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def array_header(directory: Path, reference: str) -> ArrayHeader:
    """Shape and dtype of `file.npz#array`. UnitError when it is not there or holds Python objects."""
    file, _, name = reference.partition("#")
    path = inside(directory, file)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [item.removesuffix(".npy") for item in archive.namelist()]
            if name not in names:
                raise UnitError(
                    f"{file} has no array {shown(name)}", close(name, names) or f"arrays: {', '.join(names)}"
                )
            with archive.open(f"{name}.npy") as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
    except UnitError:
        raise
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        message = f"{file} is no NumPy archive with {shown(name)}: {describe_error(error)}"
        raise UnitError(message, "write it with numpy.savez") from error
    if dtype.hasobject:
        raise UnitError(f"array {shown(name)} holds Python objects", "save numbers or fixed-length text")
    if not shape:
        raise UnitError(f"array {shown(name)} is a single value", "its rows are the requests; save an array")
    return ArrayHeader(tuple(shape), dtype.name)


def check_files(workflow: Workflow, flow: Flow, directory: Path) -> Models:
    """Models exist, have their hash and fit along the edges; held-out arrays exist and fit too. Returns the models."""
    models: dict[str, dict[str, Model]] = {}
    if workflow.document is None:
        return models
    arrays = _arrays(workflow, directory)
    for operator, spec in workflow.document.operators.items():
        for variant, files in spec.variants.items():
            model = _model(workflow, directory, ("operators", operator, "variants", variant), files)
            if model is not None:
                models.setdefault(operator, {})[variant] = model
    for operator, edges in flow.edges.items():
        for variant, model in models.get(operator, {}).items():
            _fits(workflow, operator, variant, model, edges, models, arrays)
    return models


def _arrays(workflow: Workflow, directory: Path) -> Mapping[str, ArrayHeader]:
    """Headers of the sources' held-out inputs; as many rows as labels."""
    if workflow.document is None:
        return {}
    found: dict[str, ArrayHeader] = {}
    references: dict[DocPath, str] = {
        ("sources", name, "inputs"): source.inputs
        for name, source in workflow.document.sources.items()
        if source.inputs is not None
    }
    rows: dict[DocPath, int] = {}
    if workflow.document.labels is not None:
        references = {("labels",): workflow.document.labels, **references}
    for path, reference in references.items():
        try:
            header = array_header(directory, reference)
        except UnitError as error:
            workflow.tree.add(path, error.message, error.hint)
            continue
        rows[path] = header.shape[0]
        if path[0] == "sources":
            found[str(path[1])] = header
        if header.shape[0] == 0:
            workflow.tree.add(path, f"{reference} has no rows", "its rows are the requests; save at least one")
    first = next(iter(rows), None)
    for path, count in rows.items():
        if first is not None and count != rows[first]:
            message = f"{references[path]} has {count} rows, {references[first]} has {rows[first]}"
            workflow.tree.add(path, message, "row i of every array belongs to request i")
    return found


def _model(workflow: Workflow, directory: Path, path: DocPath, files: VariantSpec) -> Model | None:
    if files.python is not None:
        return _python(workflow, path, files)
    if files.model is None:
        return None
    try:
        file = inside(directory, files.model)
        found = sha256_of(file)
        if files.sha256 is None:
            workflow.tree.add(path, "missing key 'sha256': the plan names models by content", f"write sha256: {found}")
        elif files.sha256 != found:
            message = f"the file has SHA-256 {found[:12]}..., the document says {files.sha256[:12]}..."
            workflow.tree.add((*path, "sha256"), message, f"if this model is meant, write {found}")
            return None
        return read_model(file)
    except UnitError as error:
        workflow.tree.add((*path, "model"), error.message, error.hint)
    except ModelError as error:
        workflow.tree.add((*path, "model"), str(error), "export it again, as one ONNX file")
    except OSError as error:
        workflow.tree.add(
            (*path, "model"), f"{files.model} cannot be read: {describe_error(error)}", "check its permissions"
        )
    return None


def _python(workflow: Workflow, path: DocPath, files: VariantSpec) -> Model | None:
    """What a function declares; it is not run, nor is its module imported."""
    function = files.python or ""
    try:
        source = find_module_source(split_function_name(function)[0])
    except AgentError as error:
        if files.sha256 is None:
            hint = "where only the agents have it, write its sha256 here"
            workflow.tree.add((*path, "python"), str(error), hint)
        return None
    if files.sha256 not in (None, source.sha256):
        message = f"module {source.module} has SHA-256 {source.sha256[:12]}... here, the document says {files.sha256}"
        workflow.tree.add((*path, "sha256"), message, f"if this one is meant, write {source.sha256}")
        return None
    try:
        signature = step_signature(source, function, files.arguments)
    except AgentError as error:
        workflow.tree.add((*path, "python"), str(error), f"it is in {source.path}")
        return None
    return Model(*(tuple(map(_declared, side)) for side in (signature.inputs, signature.outputs)))


def _declared(port: TensorPort) -> Port:
    return Port(port.name, Tensor(port.dtype, tuple(None if size == -1 else size for size in port.shape)))


def _fits(
    workflow: Workflow,
    operator: str,
    variant: str,
    model: Model,
    edges: tuple[Edge, ...],
    models: Mapping[str, Mapping[str, Model]],
    arrays: Mapping[str, ArrayHeader],
) -> None:
    """Every edge finds an input of the model, and every upstream variant's output fits it."""
    base: DocPath = ("operators", operator, "inputs")
    if len(edges) != len(model.inputs):
        names = ", ".join(port.name for port in model.inputs)
        message = f"{len(edges)} inputs, but model {variant} takes {len(model.inputs)} ({names})"
        workflow.tree.add(base, message, "one edge per model input", key=True)
        return
    taken: dict[str, str] = {}
    for index, edge in enumerate(edges):
        port = model.input_for(edge.upstream, index)
        if port.name in taken:
            message = f"{edge.upstream} and {taken[port.name]} both feed input {port.name!r} of model {variant}"
            workflow.tree.add(
                (*base, index), message, "name the model's inputs after the operators, or reorder the edges"
            )
            continue
        taken[port.name] = edge.upstream
        found = _edge_problems(workflow, (*base, index), edge, port, models.get(edge.upstream, {}))
        if edge.upstream in arrays:
            header = arrays[edge.upstream]
            tensor = Tensor(header.dtype, (1, *header.shape[1:]))
            found.setdefault(misfits(tensor, port, edge.kind), []).append("held-out inputs")
        found.setdefault(batch_problem(port, edge.kind), [])
        for message, upstreams in found.items():
            if message:
                origin = f"{edge.upstream} ({', '.join(upstreams)})" if upstreams else edge.upstream
                text = f"{origin} does not fit input {port.name!r} of {operator} {variant}: {message}"
                workflow.tree.add((*base, index), text, "change one of the models, or name another output")


def _edge_problems(
    workflow: Workflow, path: DocPath, edge: Edge, port: Port, upstreams: Mapping[str, Model]
) -> dict[str, list[str]]:
    """What does not fit -> the upstream variants concerned. Unknown outputs are told at once."""
    found: dict[str, list[str]] = {}
    for name, upstream in upstreams.items():
        output = upstream.output(edge.output)
        if output is None:
            known = [item.name for item in upstream.outputs]
            hint = close(edge.output or "", known) or f"outputs: {', '.join(known)}"
            workflow.tree.add((*path, "output"), f"model {name} of {edge.upstream} has no output {edge.output!r}", hint)
            continue
        found.setdefault(misfits(output.tensor, port, edge.kind), []).append(name)
        if edge.kind is EdgeKind.FAN_OUT and output.tensor.shape == ():
            found.setdefault("a fan-out needs a leading dimension, the output is a single value", []).append(name)
    return found
