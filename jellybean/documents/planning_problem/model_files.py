"""References to the model files and Python functions of variants, by content hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from jellybean.documents.layout import WORKFLOW_FILE, WORKFLOWS_FOLDER
from jellybean.documents.provenance.content import function_digest
from jellybean.documents.python_modules import function_source, where_to_put_it
from jellybean.documents.schema.reader import dotted
from jellybean.documents.schema.workflow import VariantSpec
from jellybean.errors import DocumentError, DocumentProblem, InputError
from jellybean_agent import AgentError, PortNames, data_names, describe_error, hash_model
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import (
    ModelFile,
    ModelPorts,
    ModelRef,
    PythonRef,
    Variant,
)


def model_ref(
    directory: Path,
    model: str | None,
    sha256: str | None,
    names: PortNames = PortNames(),
    hashes: Mapping[str, str] = MappingProxyType({}),
) -> ModelRef | None:
    """Reference to a model by content hash, with its size in bytes if its files are present; None if no model.

    `hashes`: of the files of a model with data files, for where they are not present.
    """
    if not model or not sha256:
        return None
    path = Path(model).as_posix()
    files = _model_files(directory, path) or tuple(ModelFile(name, digest) for name, digest in hashes.items())
    sizes = [file.size_bytes for file in files]
    if not files and (directory / model).is_file():
        sizes = [float((directory / model).stat().st_size)]
    size_bytes = sum(size for size in sizes if size is not None) if sizes and None not in sizes else None
    return ModelRef(path, sha256, size_bytes, None, _model_ports(names), files)


def _model_files(directory: Path, model: str) -> tuple[ModelFile, ...]:
    """The files of a model with data files, with their hashes; none for a single file, or if the model is not here.

    InputError if one of them cannot be read.
    """
    try:
        if not (directory / model).is_file() or not data_names(directory / model):
            return ()
        found = hash_model(directory / model)[1]
    except AgentError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{directory / model} cannot be read: {describe_error(error)}") from error
    folder = PurePosixPath(model).parent
    paths = [(folder / file.name).as_posix() if file.name else model for file in found]
    return tuple(ModelFile(path, file.sha256, file.size_bytes) for path, file in zip(paths, found, strict=True))


def _model_ports(names: PortNames) -> ModelPorts | None:
    if names == PortNames():
        return None
    counted = names.rows, names.rows_of, names.gathered_rows
    return ModelPorts(names.inputs, names.output, names.outputs, *counted, names.constants)


def python_ref(directory: Path, operator: str, variant: str, spec: VariantSpec) -> ModelRef | None:
    """Reference to the variant's Python function by content hash of its module; None if it has no function.

    DocumentError if the function does not exist.
    """
    if spec.python is None:
        return None
    try:
        module_sha256 = spec.sha256 or function_source(directory, spec.python).sha256
    except AgentError as error:
        where = dotted(("operators", operator, "variants", variant, "python"))
        hint = where_to_put_it(spec.python)
        raise DocumentError(
            [DocumentProblem(str(directory / WORKFLOW_FILE), None, None, where, str(error), hint)]
        ) from error
    function = PythonRef(spec.python, canonical_json(spec.arguments), module_sha256)
    return ModelRef("", function_digest(spec, module_sha256), 0.0, function, _model_ports(spec.port_names))


def with_model_path(variant: Variant, workflow: str) -> Variant:
    """The variant with its model's path relative to the folder that holds all workflows."""
    if variant.model is None or variant.model.python is not None:
        return variant
    path = Path(WORKFLOWS_FOLDER, workflow, variant.model.path).as_posix()
    files = tuple(
        replace(file, path=Path(WORKFLOWS_FOLDER, workflow, file.path).as_posix()) for file in variant.model.files
    )
    return replace(variant, model=replace(variant.model, path=path, files=files))
