"""Exports a trained model: ONNX file, checked against torch, and a variant with its sha256 in workflow.yaml."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from jellybean.documents.schema.reader import Tree, read_file
from jellybean.documents.schema.validation import validate_tree
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.documents.training.run import ExportSpec
from jellybean.pipeline.torch_trace import CallArguments, CallForm
from jellybean.training.errors import TrainingError
from jellybean.training.losses import MODEL, class_scores

WORKFLOW = "workflow.yaml"
MAX_DIFFERENCE = 1e-4  # between torch's and onnxruntime's outputs, relative to max(1, |output|)
EXPORT_ROWS = 256  # rows on which the exported model is compared with torch


@dataclass(frozen=True)
class OnnxPort:
    """An input or output: name, ONNX element type, sizes without the batch dimension."""

    name: str
    dtype: int
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class OnnxPorts:
    """Inputs, in the order of the model's arguments, and the output."""

    inputs: tuple[OnnxPort, ...]
    output: OnnxPort


@dataclass(frozen=True)
class ExportedModel:
    """The exported file. `max_difference`: largest relative difference of its outputs from torch's."""

    path: Path
    sha256: str
    max_difference: float


def export_variant(module: nn.Module, spec: ExportSpec, directory: Path, inputs: CallArguments) -> ExportedModel:
    """Write the model file and the variant's line. TrainingError if the workflow has no place for it.

    `inputs`: rows on which the file is compared with torch.

    The line is validated before an earlier model file is replaced, so the sha256 in the workflow always matches the
    file. If the line cannot be inserted, the model is stored beside the old file under a different name.
    """
    variants = _variants(directory, spec)
    others = [one.get("model") for name, one in variants.items() if isinstance(one, dict) and name != spec.variant]
    like = next((directory / one for one in others if isinstance(one, str) and (directory / one).is_file()), None)
    path = directory / spec.model
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        max_difference = _export(module, spec, inputs, partial, like)
        digest = hashlib.sha256(partial.read_bytes()).hexdigest()
        line = _workflow_with_line(directory / WORKFLOW, spec, digest)
        if line is None:
            beside = path if not path.exists() else path.with_name(f"{path.stem}-{digest[:8]}{path.suffix}")
            partial.replace(beside)
            entry = _entry(spec.variant, (Path(spec.model).parent / beside.name).as_posix(), digest)
            raise TrainingError(f"{directory / WORKFLOW}: write this under {spec.operator}'s variants by hand: {entry}")
        partial.replace(path)
        line.replace(directory / WORKFLOW)
    finally:
        partial.unlink(missing_ok=True)
    return ExportedModel(path, digest, max_difference)


def served_arguments(inputs: CallArguments, loss: str) -> CallArguments:
    """The arguments that the exported model takes: all, but the labels of a model that computes its loss."""
    args, kwargs = inputs.form.nest(inputs.tensors)
    if loss == MODEL:
        kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
    return CallArguments.of(args, kwargs)


def check_export(spec: ExportSpec, directory: Path) -> None:
    """TrainingError if the workflow has no place for the trained model; checked before training starts."""
    _variants(directory, spec)


def _variants(directory: Path, spec: ExportSpec) -> dict[str, object]:
    tree = _workflow(directory)
    operator = tree.data["operators"].get(spec.operator)
    variants = operator.get("variants") if isinstance(operator, dict) else None
    if not isinstance(variants, dict):
        known = ", ".join(str(name) for name in tree.data["operators"])
        raise TrainingError(
            f"{tree.file}: there is no operator {spec.operator} whose variants are a map; it has {known}"
        )
    return variants


def _workflow(directory: Path) -> Tree:
    tree = read_file(directory / WORKFLOW)
    if tree.problems or not isinstance(tree.data, dict) or not isinstance(tree.data.get("operators"), dict):
        reason = str(tree.problems[0]) if tree.problems else "it has no operators"
        raise TrainingError(f"{directory / WORKFLOW} has no place for the trained model: {reason}")
    return tree


class _Scores(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Calls a model with its tensors one by one; returns its scores only, as a variant has one output."""

    def __init__(self, module: nn.Module, form: CallForm) -> None:
        super().__init__()
        self.module, self._form = module, form

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return class_scores(self._form.call(self.module, tensors))


def _export(module: nn.Module, spec: ExportSpec, inputs: CallArguments, path: Path, like: Path | None) -> float:
    """Export to `path`, with the port names of the model `like`. Returns the largest difference from torch."""
    wanted = _wanted_ports(inputs.names, like)
    names = [port.name for port in wanted.inputs]
    scores = _Scores(module.cpu(), inputs.form).eval()
    tensors = [value[:EXPORT_ROWS].cpu() for value in inputs.tensors]
    with warnings.catch_warnings(), torch.no_grad(), _plain_attention(module):
        warnings.simplefilter("ignore")  # the TorchScript exporter, which needs no further package, is deprecated
        torch.onnx.export(
            scores,
            tuple(value[:2] for value in tensors),
            str(path),
            input_names=names,
            output_names=[wanted.output.name],
            dynamic_axes={name: {0: "n"} for name in (*names, wanted.output.name)},
            opset_version=spec.opset,
            dynamo=False,
        )
    with torch.no_grad():
        expected = scores(*tensors).numpy()
    module.train()
    if like is not None:
        _check_ports(wanted, _ports(path), like)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    read = {port.name for port in session.get_inputs()}  # the exporter leaves out what the model does not read
    given = {name: value.numpy() for name, value in zip(names, tensors, strict=True) if name in read}
    found = session.run(None, given)[0]
    if found.shape != expected.shape:
        raise TrainingError(f"the exported model gives {found.shape} in place of {expected.shape}")
    max_difference = float(np.max(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))))
    if not max_difference <= MAX_DIFFERENCE:
        raise TrainingError(
            f"the exported model differs from torch by {max_difference:.2g}; {MAX_DIFFERENCE:g} is allowed"
        )
    return max_difference


@contextmanager
def _plain_attention(module: nn.Module) -> Iterator[None]:
    """Context in which a model of transformers computes attention by matrix products.

    The exporter cannot convert torch's fused attention with grouped queries.
    """
    if not hasattr(module, "set_attn_implementation"):
        yield
        return
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)


def _wanted_ports(arguments: Sequence[str], like: Path | None) -> OnnxPorts:
    """Ports for these arguments: those of the model `like`. TrainingError if it does not take the same inputs."""
    if like is None:
        names = ["input"] if len(arguments) == 1 else arguments
        return OnnxPorts(tuple(OnnxPort(name, 0, ()) for name in names), OnnxPort("output", 0, ()))
    found = _ports(like)
    by_name = {port.name: port for port in found.inputs}
    if len(found.inputs) == len(arguments) == 1:
        return found
    if by_name.keys() != set(arguments):
        raise TrainingError(
            f"the trained model takes {', '.join(arguments)}, and {like} {', '.join(by_name)}: variants of an operator "
            "must take the same"
        )
    return OnnxPorts(tuple(by_name[name] for name in arguments), found.output)


def _ports(path: Path) -> OnnxPorts:
    """The ports of a model. TrainingError if it has several outputs."""
    graph = onnx.load(str(path), load_external_data=False).graph
    constants = {constant.name for constant in graph.initializer}
    if len(graph.output) != 1:
        raise TrainingError(f"{path} has {len(graph.output)} outputs; one is needed")
    inputs = tuple(_port(value) for value in graph.input if value.name not in constants)
    return OnnxPorts(inputs, _port(graph.output[0]))


def _port(value: onnx.ValueInfoProto) -> OnnxPort:
    tensor = value.type.tensor_type
    sizes = tuple(side.dim_value if side.HasField("dim_value") else side.dim_param for side in tensor.shape.dim)
    return OnnxPort(value.name, tensor.elem_type, sizes[1:])


def _check_ports(wanted: OnnxPorts, found: OnnxPorts, like: Path) -> None:
    """TrainingError if the ports differ from those of the operator's other variant."""
    own = {port.name: port for port in found.inputs}
    unread = [port.name for port in wanted.inputs if port.name not in own]
    if unread:
        raise TrainingError(f"the trained model does not read {', '.join(unread)}, which {like} takes")
    pairs = [("takes", port, own[port.name]) for port in wanted.inputs]
    for what, one, other in [*pairs, ("gives", wanted.output, found.output)]:
        if one.dtype != other.dtype or len(one.sizes) != len(other.sizes):
            kinds = [onnx.TensorProto.DataType.Name(port.dtype).lower() for port in (other, one)]
            raise TrainingError(
                f"the trained model {what} {kinds[0]} {list(other.sizes)}, and {like} {kinds[1]} {list(one.sizes)}: "
                "variants of an operator must take and give the same"
            )


def _entry(variant: str, model: str, digest: str) -> str:
    return f"{variant}: {{model: {model}, sha256: {digest}}}"


def _workflow_with_line(path: Path, spec: ExportSpec, digest: str) -> Path | None:
    """Path of a temporary copy of the workflow with the variant's line; None if the line cannot be inserted."""
    text = path.read_text(encoding="utf-8")
    changed = _insert_line(text.splitlines(keepends=True), spec, _entry(spec.variant, spec.model, digest))
    if changed is None:
        return None
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(changed, encoding="utf-8")
    tree = read_file(partial)
    document = validate_tree(WorkflowDocument, tree).document
    own = document.operators.get(spec.operator) if document is not None and not tree.problems else None
    if own is not None and spec.variant in own.variants and own.variants[spec.variant].sha256 == digest:
        return partial
    partial.unlink()
    return None


def _insert_line(lines: list[str], spec: ExportSpec, entry: str) -> str | None:
    """The text with `entry` after the last variant, or in place of its old line; None if there is no place."""
    operator = _find_key(lines, 0, len(lines), spec.operator)
    if operator is None:
        return None
    variants = _find_key(lines, operator + 1, _block_end(lines, operator), "variants")
    if variants is None or re.search(r"variants:\s*[^#\s]", lines[variants]):
        return None
    end = _block_end(lines, variants)
    own = _find_key(lines, variants + 1, end, spec.variant)
    first = next((line for line in lines[variants + 1 : end] if line.strip() and not line.lstrip().startswith("#")), "")
    line = " " * _indent(first) + entry + "\n"
    begin, stop = (own, _block_end(lines, own)) if own is not None else (end, end)
    return "".join([*lines[:begin], line, *lines[stop:]])


def _find_key(lines: list[str], begin: int, end: int, key: str) -> int | None:
    pattern = re.compile(rf"\s*{re.escape(key)}:(\s|$)")
    return next((number for number in range(begin, end) if pattern.match(lines[number])), None)


def _block_end(lines: list[str], number: int) -> int:
    """Index of the line after the block of the key at line `number`, excluding trailing empty lines and comments."""
    own, last = _indent(lines[number]), number
    for place in range(number + 1, len(lines)):
        if not lines[place].strip() or lines[place].lstrip().startswith("#"):
            continue
        if _indent(lines[place]) <= own:
            break
        last = place
    return last + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
