"""Check the files that documents name: model files by hash and signature, held-out arrays by header."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from jellybean.documents.checks.checked import CheckedWorkflow, as_written
from jellybean.documents.checks.constants import without_constants
from jellybean.documents.checks.gathered_rows import without_row_counts
from jellybean.documents.checks.model_fit import ArrayHeader, Models, check_model_fit, with_step_shapes
from jellybean.documents.checks.state_checks import without_state
from jellybean.documents.checks.tensors import ModelFileError, ModelSignature, Port, Tensor, read_model
from jellybean.documents.flow import Flow
from jellybean.documents.python_modules import function_source, where_to_put_it
from jellybean.documents.schema.fields import FROM_DOCUMENT
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import VariantSpec
from jellybean.quantities import InvalidValueError, did_you_mean, did_you_mean_file, quoted
from jellybean.tensor_files import read_header
from jellybean_agent import (
    AgentError,
    FileHash,
    ModelError,
    ModuleSource,
    TensorPort,
    describe_error,
    hash_model,
    step_signature,
    unserved_reason,
)

_CHUNK = 2**20
_FIX = "have `jellybean validate DIR --fix` write it"


def inside(directory: Path, text: str) -> Path:
    """Path of the project file `text`, relative to `directory`.

    InvalidValueError if it is missing or, after resolving symbolic links, outside `directory`.
    """
    if "\0" in text or "\\" in text or PurePosixPath(text).is_absolute():
        raise InvalidValueError(
            f"{quoted(text)} is not a relative path", "write it relative to the project folder, with '/'"
        )
    path = directory / text
    try:
        within = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError) as error:
        raise InvalidValueError(f"{quoted(text)} cannot be resolved: {describe_error(error)}") from error
    if not within:
        raise _outside(directory, text)
    if not path.is_file():
        files = (item.name for item in path.parent.glob("*") if item.is_file())
        near = did_you_mean_file(text, files)
        raise InvalidValueError(f"there is no file {quoted(text)}", near or f"looked in {path.parent}")
    return path


def _outside(directory: Path, text: str) -> InvalidValueError:
    """The error of a path that leads out of the project: of a link, with where it leads."""
    message = f"{quoted(text)} is outside the project folder"
    parts = PurePosixPath(text).parts
    for count in range(1, len(parts) + 1):
        path = directory.joinpath(*parts[:count])
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            what = "it" if count == len(parts) else quoted("/".join(parts[:count]))
            hint = "put a copy there in place of the link"
            return InvalidValueError(f"{message}: {what} is a link to {path.resolve()}", hint)
    return InvalidValueError(message, "copy the file into it")


def sha256_of(path: Path) -> str:
    """SHA-256 of a model: of its file, or of all its files together. InvalidValueError if one is missing."""
    return _hashed(path)[0]


def _hashed(path: Path) -> tuple[str, tuple[FileHash, ...]]:
    try:
        return hash_model(path)
    except ModelError as error:
        raise InvalidValueError(str(error), "copy every file that the exporter wrote, with its name") from error


def array_header(directory: Path, reference: str) -> ArrayHeader:
    """Shape and dtype of `file.npz#array`.

    InvalidValueError if the array is missing, has Python objects or has no rows.
    """
    file, _, name = reference.partition("#")
    path = inside(directory, file)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [item.removesuffix(".npy") for item in archive.namelist()]
            if name not in names:
                raise InvalidValueError(
                    f"{file} has no array {quoted(name)}", did_you_mean(name, names) or f"arrays: {', '.join(names)}"
                )
            with archive.open(f"{name}.npy") as stream:
                shape, _, dtype = read_header(stream)
    except InvalidValueError:
        raise
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        message = f"{file} is not a NumPy archive with {quoted(name)}: {describe_error(error)}"
        raise InvalidValueError(message, "write it with numpy.savez") from error
    if dtype.hasobject:
        raise InvalidValueError(f"array {quoted(name)} holds Python objects", "save numbers")
    if not shape:
        raise InvalidValueError(f"array {quoted(name)} is a single value", "save an array with one row per request")
    return ArrayHeader(tuple(shape), dtype.name)


def check_files(workflow: CheckedWorkflow, flow: Flow, directory: Path) -> Models:
    """Check that models and held-out arrays exist, have the right hashes, and fit each other along the edges.

    Returns the signatures of the models, with the shapes that reach them where they are built-in steps.
    """
    models: dict[str, dict[str, ModelSignature]] = {}
    if workflow.document is None:
        return models
    arrays = _arrays(workflow, directory)
    for operator, spec in workflow.document.operators.items():
        for variant, files in spec.variants.items():
            model = _model(workflow, directory, ("operators", operator, "variants", variant), files)
            if model is not None:
                fed = without_row_counts(workflow, operator, spec, variant, model)
                fed = without_constants(workflow, operator, variant, fed)
                models.setdefault(operator, {})[variant] = without_state(workflow, operator, spec, variant, fed)
    for path, files in _valid_variants(workflow):
        _model(workflow, directory, path, files)
    known = with_step_shapes(workflow, flow, models, arrays)
    check_model_fit(workflow, flow, known, arrays)
    return known


def _arrays(workflow: CheckedWorkflow, directory: Path) -> Mapping[str, ArrayHeader]:
    """Source -> header of its held-out inputs. Reports arrays that do not have as many rows as most others."""
    if workflow.document is None:
        return {}
    headers: dict[str, ArrayHeader] = {}
    references: dict[DocPath, str] = {
        ("sources", name, "inputs"): source.inputs
        for name, source in workflow.document.sources.items()
        if source.inputs is not None
    }
    rows: dict[DocPath, int] = {}
    per_row = {("labels",): workflow.document.labels, ("stream_ids",): workflow.document.stream_ids}
    references |= {path: named for path, named in per_row.items() if named is not None}
    for path, reference in references.items():
        try:
            header = array_header(directory, reference)
        except InvalidValueError as error:
            workflow.tree.add(path, error.message, error.hint)
            continue
        rows[path] = header.shape[0]
        if reason := unserved_reason(header.dtype):
            advice = "answers are numbers" if path == ("labels",) else "convert the array"
            workflow.tree.add(path, f"{reference} {reason}", advice)
        elif path == ("stream_ids",) and len(header.shape) != 1:
            workflow.tree.add(path, f"{reference} has {len(header.shape)} dimensions", "save one stream id per row")
        elif path[0] == "sources":
            headers[str(path[1])] = header
        if header.shape[0] == 0:
            workflow.tree.add(path, f"{reference} has no rows", "save an array with one row per request")
    _check_row_counts(workflow, references, rows)
    return headers


def _check_row_counts(
    workflow: CheckedWorkflow, references: Mapping[DocPath, str], rows: Mapping[DocPath, int]
) -> None:
    """Report arrays with another number of rows than most have; of two numbers alike, the one of the first source."""
    if not rows:
        return
    ((usual, _),) = Counter(rows.values()).most_common(1)  # the first of equally common ones; sources come first
    example = next(path for path, count in rows.items() if count == usual)
    for path, count in rows.items():
        if count != usual:
            message = f"{references[path]} has {count} rows, {references[example]} has {usual}"
            workflow.tree.add(path, message, "row i of every array belongs to request i")


def _valid_variants(workflow: CheckedWorkflow) -> Iterator[tuple[DocPath, VariantSpec]]:
    """The valid variants of operators that were dropped for an error elsewhere."""
    for operator, raw in as_written(workflow, "operators"):
        variants = raw.get("variants")
        for variant, files in (variants if isinstance(variants, dict) else {}).items():
            try:
                spec = VariantSpec.model_validate(files, context=FROM_DOCUMENT, by_alias=True, by_name=False)
            except ValidationError:
                continue
            yield ("operators", operator, "variants", variant), spec


def _model(workflow: CheckedWorkflow, directory: Path, path: DocPath, files: VariantSpec) -> ModelSignature | None:
    if files.python is not None:
        return _python(workflow, directory, path, files)
    if files.model is None:
        return None
    try:
        file = inside(directory, files.model)
        digest, parts = _hashed(file)
        for part in parts[1:]:
            inside(directory, (PurePosixPath(files.model).parent / part.name).as_posix())
        if files.sha256 is None:
            workflow.tree.add(
                path, "missing key 'sha256': a plan identifies models by hash", f"write sha256: {digest}, or {_FIX}"
            )
        elif files.sha256 != digest:
            what = (
                "the file has" if len(parts) == 1 else f"the file and {', '.join(part.name for part in parts[1:])} have"
            )
            message = f"{what} SHA-256 {digest[:12]}..., the document says {files.sha256[:12]}..."
            workflow.tree.add((*path, "sha256"), message, f"if this is the right model, write {digest}, or {_FIX}")
            return None
        return replace(read_model(file), names=files.port_names)
    except InvalidValueError as error:
        workflow.tree.add((*path, "model"), error.message, error.hint)
    except ModelFileError as error:
        workflow.tree.add((*path, "model"), error.reason, error.hint)
    except OSError as error:
        workflow.tree.add(
            (*path, "model"), f"{files.model} cannot be read: {describe_error(error)}", "check its permissions"
        )
    return None


def _python(workflow: CheckedWorkflow, directory: Path, path: DocPath, files: VariantSpec) -> ModelSignature | None:
    """The declared inputs and outputs of a Python variant, read without importing its module; None if unavailable."""
    function = files.python or ""
    try:
        source = function_source(directory, function)
    except AgentError as error:
        if files.sha256 is None:
            workflow.tree.add((*path, "python"), str(error), where_to_put_it(function))
        return None
    if files.sha256 not in (None, source.sha256):
        message = f"module {source.module} has SHA-256 {source.sha256[:12]}... here, the document says {files.sha256}"
        workflow.tree.add((*path, "sha256"), message, f"if this is the right one, write {source.sha256}")
        return None
    try:
        return _declared_signature(source, files)
    except AgentError as error:
        workflow.tree.add((*path, "python"), str(error), f"defined in {source.path}")
        return None


def declared_signature(directory: Path, spec: VariantSpec) -> ModelSignature:
    """The declared inputs and outputs of a variant that is a Python function. AgentError if there is no such one."""
    return _declared_signature(function_source(directory, spec.python or ""), spec)


def _declared_signature(source: ModuleSource, spec: VariantSpec) -> ModelSignature:
    signature = step_signature(source, spec.python or "", spec.arguments)
    inputs, outputs = (tuple(map(_declared, side)) for side in (signature.inputs, signature.outputs))
    return ModelSignature(inputs, outputs, spec.port_names)


def _declared(port: TensorPort) -> Port:
    return Port(port.name, Tensor(port.dtype, tuple(None if size == -1 else size for size in port.shape)))
