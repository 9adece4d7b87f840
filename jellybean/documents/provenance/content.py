"""The content of a project's files that measurements depend on, by digest: models, edges, held-out data, speeds."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jellybean.documents.checks.files import inside
from jellybean.documents.checks.model_fit import Models
from jellybean.documents.checks.tensors import ModelSignature
from jellybean.documents.flow import follow_requests
from jellybean.documents.layout import WORKFLOW_FILE
from jellybean.documents.python_modules import function_source
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.provenance import MeasuredContent, short
from jellybean.documents.schema.workflow import VariantSpec, WorkflowDocument
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.tensor_files import read_header
from jellybean_agent import AgentError, Device, PortNames, describe_error
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import Edge, EdgeKind

DEFAULT_METRIC = "exact_match"
_CHUNK = 2**20


@dataclass(frozen=True)
class Content:
    """Today's content. What cannot be read here (files of another machine) is absent, and is not compared.

    `measured`: what a profiling run of today would record. `by_position`: operators with a model whose inputs are
    matched by position, so that the order of their edges matters. `names`: (operator, variant) -> file or function.
    `speeds`: worker type -> its emulated speed, or None if it is a device of its own. `cuts`: (operator, variant) ->
    number of cuts that the workflow allows. `signatures`: inputs and outputs of the models, where they are known.
    `devices`: worker type -> its device.
    """

    measured: MeasuredContent
    by_position: frozenset[str]
    names: Mapping[tuple[str, str], str]
    speeds: Mapping[str, float | None]
    cuts: Mapping[tuple[str, str], int]
    signatures: Models = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)


def read_content(
    directory: Path | None, workflow: WorkflowDocument, infrastructure: InfrastructureDocument, signatures: Models
) -> Content:
    """Digest a project's content. `directory`: None if the files that the documents name are not here."""
    edges = follow_requests(workflow, infrastructure.sites).edges
    variants = {
        (operator, variant): spec
        for operator, declared in workflow.operators.items()
        for variant, spec in declared.variants.items()
    }
    models: dict[str, dict[str, str]] = {}
    for (operator, variant), spec in variants.items():
        if (digest := _model_digest(directory, spec)) is not None:
            models.setdefault(operator, {})[variant] = short(digest)
    arrays = {f"sources.{name}.inputs": source.inputs for name, source in workflow.sources.items()}
    digests = _array_digests(directory, {**arrays, "labels": workflow.labels, "stream_ids": workflow.stream_ids})
    return Content(
        MeasuredContent(
            models=models,
            edges={
                name: tuple(edge_text(edge, signatures) for edge in found)
                for name, found in edges.items()
                if directory is not None
            },
            input_names=_by_variant(signatures, partial(_input_names, edges)),
            output_names=_by_variant(signatures, partial(_output_names, edges)),
            inputs={name: digests[path] for name in workflow.sources if (path := f"sources.{name}.inputs") in digests},
            stream_ids=digests.get("stream_ids"),
            labels=digests.get("labels"),
            labels_of=workflow.labels_of if workflow.labels is not None and len(workflow.answers) > 1 else None,
            metric=(workflow.metric or DEFAULT_METRIC) if workflow.labels is not None else None,
        ),
        frozenset(name for name, found in edges.items() if _is_positional(found, signatures.get(name, {}))),
        {key: spec.model or f"{spec.python}, its source or arguments" for key, spec in variants.items()},
        {pool.type or name: pool.speed for name, pool in infrastructure.workers.items()},
        {(operator, variant): workflow.operators[operator].cuts_of(variant) for operator, variant in variants},
        signatures,
        {pool.type or name: pool.worker_device for name, pool in infrastructure.workers.items()},
    )


def edge_text(edge: Edge, signatures: Models) -> str:
    """An edge in words: its upstream, its kind unless plain, and the output that it sends unless the first."""
    kind = "" if edge.kind is EdgeKind.EACH else f" {edge.kind.value}"
    upstream = signatures.get(edge.upstream, {}).values()
    first = bool(upstream) and all(model.output(edge.output) == model.output(None) for model in upstream)
    return f"{edge.upstream}{kind}" + (f" output {edge.output}" if edge.output and not first else "")


def _by_variant(signatures: Models, text: Callable[[str, ModelSignature], str]) -> dict[str, dict[str, str]]:
    """Operator -> variant -> text about its model, for the variants for which it is not empty."""
    texts = {
        operator: {variant: text(operator, model) for variant, model in variants.items()}
        for operator, variants in signatures.items()
    }
    named = {operator: {variant: one for variant, one in found.items() if one} for operator, found in texts.items()}
    return {operator: found for operator, found in named.items() if found}


def _input_names(edges: Mapping[str, tuple[Edge, ...]], operator: str, model: ModelSignature) -> str:
    """The model inputs that a variant's edges feed, where its own names make that differ from the default.

    After them its constants, on whose values answers depend as well.
    """
    default = replace(model, names=PortNames())
    constants = [f"{name} = {text}" for name, text in model.names.constants.items()]
    pairs = [(edge.upstream, index) for index, edge in enumerate(edges.get(operator, ()))]
    if len(pairs) > len(model.inputs) or all(model.input_for(*pair) == default.input_for(*pair) for pair in pairs):
        return ", ".join(constants)
    fed = [f"{model.input_for(*pair).name} from {pair[0]}" for pair in pairs]
    return ", ".join([*fed, *constants])


def _output_names(edges: Mapping[str, tuple[Edge, ...]], operator: str, model: ModelSignature) -> str:
    """The model outputs that a variant sends, where its own names make them differ from the default."""
    default = replace(model, names=PortNames())
    names = [edge.output for into in edges.values() for edge in into if edge.upstream == operator] or [None]
    sent = {name: port.name for name in names if (port := model.output(name)) not in (None, default.output(name))}
    return ", ".join(one if name is None else f"{one} as {name}" for name, one in sent.items())


def _is_positional(edges: tuple[Edge, ...], signatures: Mapping[str, Any]) -> bool:
    """True if the order of an operator's edges decides which input of a model they feed."""
    upstreams = {edge.upstream for edge in edges}
    named = (
        upstreams <= {port.name for port in signature.inputs} | set(signature.names.inputs)
        for signature in signatures.values()
    )
    return len(edges) > 1 and not all(named)


def _model_digest(directory: Path | None, spec: VariantSpec) -> str | None:
    """SHA-256 of a variant's model, or of its function with arguments; None if it has none or it is not here.

    `directory`: None if modules that are installed here are not those of the project.
    """
    if spec.python is None:
        return spec.sha256 if spec.model is not None else None
    if spec.sha256 is not None:
        return function_digest(spec, spec.sha256)
    if directory is None:
        return None
    try:
        return function_digest(spec, function_source(directory, spec.python).sha256)
    except AgentError:
        return None  # reported by the checks of files


def function_digest(spec: VariantSpec, module_sha256: str) -> str:
    """SHA-256 of a variant's Python function: its name, arguments and the source of its module."""
    described = canonical_json([spec.python, canonical_json(spec.arguments), module_sha256])
    return hashlib.sha256(described.encode()).hexdigest()


def _array_digests(directory: Path | None, references: Mapping[str, str | None]) -> dict[str, str]:
    """Path in workflow.yaml -> digest of the array that it names. DocumentError for arrays that cannot be read."""
    digests: dict[str, str] = {}
    problems: list[DocumentProblem] = []
    for path, reference in references.items():
        if directory is None or reference is None:
            continue
        try:
            digests[path] = short(array_digest(directory, reference))
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            message = f"{reference} cannot be read: {describe_error(error)}"
            file = str(directory / WORKFLOW_FILE)
            problems.append(DocumentProblem(file, None, None, path, message, "write it again with numpy.savez"))
    if problems:
        raise DocumentError(problems)
    return digests


def array_digest(directory: Path, reference: str) -> str:
    """SHA-256 of the type, shape and values of `file.npz#array`, read in pieces; compression does not matter."""
    file, _, name = reference.partition("#")
    digest = hashlib.sha256()
    with zipfile.ZipFile(inside(directory, file)) as archive, archive.open(f"{name}.npy") as stream:
        shape, by_column, dtype = read_header(stream)
        digest.update(repr((dtype.str, shape, by_column)).encode())
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
