"""Exports a trained model: ONNX file, checked against torch, and a variant with its sha256 in workflow.yaml."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from pydantic import ValidationError
from torch import nn

from jellybean.documents.schema.fields import FROM_DOCUMENT
from jellybean.documents.schema.reader import Tree, read_file
from jellybean.documents.schema.validation import validate_tree
from jellybean.documents.schema.workflow import VariantSpec, WorkflowDocument
from jellybean.documents.training.run import ExportSpec
from jellybean.folders import require_no_link, write_file
from jellybean.pipeline.call_form import CallForm
from jellybean.pipeline.torch_state import state_kept
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.pipeline.user_errors import is_users_file, place_and_reason
from jellybean.training.errors import TrainingError
from jellybean.training.losses import MODEL, class_scores
from jellybean.training.models.score_forms import (
    Form,
    ScoreForm,
    Sibling,
    converted,
    form_of,
    forms_of,
    mismatch_note,
)
from jellybean_agent import PortNames, hash_model

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
    """The exported file. `max_difference`: largest relative difference of its outputs from torch's.

    `notes`: what was done, or could not be done, so that it gives what the operator's other variants give.
    """

    path: Path
    sha256: str
    max_difference: float
    notes: tuple[str, ...] = ()


def export_variant(module: nn.Module, spec: ExportSpec, directory: Path, inputs: CallArguments) -> ExportedModel:
    """Write the model file and the variant's line. TrainingError if the workflow has no place for it.

    `inputs`: rows on which the file is compared with torch.

    The line is validated before an earlier model file is replaced, so the sha256 in the workflow always matches the
    file. If the line cannot be inserted, the model is stored beside the old file under a different name.
    """
    siblings = _siblings(directory, spec)
    path = directory / spec.model
    require_no_link(path.parent, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    require_no_link(path, directory)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        max_difference, notes = _export(module, spec, inputs, partial, siblings)
        digest = hash_model(partial)[0]
        maps = _maps_like(siblings[0].names, partial) if siblings else ""
        line = _workflow_with_line(directory / WORKFLOW, spec, _entry(spec.variant, spec.model, digest, maps), digest)
        if line is None:
            beside = path if not path.exists() else path.with_name(f"{path.stem}-{digest[:8]}{path.suffix}")
            partial.replace(beside)
            entry = _entry(spec.variant, (Path(spec.model).parent / beside.name).as_posix(), digest, maps)
            raise TrainingError(f"{directory / WORKFLOW}: write this under {spec.operator}'s variants by hand: {entry}")
        partial.replace(path)
        line.replace(directory / WORKFLOW)
    finally:
        partial.unlink(missing_ok=True)
    return ExportedModel(path, digest, max_difference, notes)


def try_export(module: nn.Module, spec: ExportSpec, directory: Path, inputs: CallArguments) -> None:
    """Export the model as it is to a temporary file. TrainingError if it could not become a variant once trained.

    Operators, ports and shapes do not depend on the weights. The module and the random state stay as they are.
    """
    with tempfile.TemporaryDirectory() as folder, state_kept(module):
        try:
            _export(module, spec, inputs, Path(folder) / "trial.onnx", _siblings(directory, spec))
        except TrainingError as error:
            raise TrainingError(f"the trained model could not be exported: {error}") from error
        finally:
            module.train()


def _siblings(directory: Path, spec: ExportSpec) -> list[Sibling]:
    """The operator's other variants that have a model file here."""
    variants = _variants(directory, spec)
    served = [Sibling(name, *pair) for name, raw in variants.items() if (pair := _served(raw, directory))]
    return [sibling for sibling in served if sibling.variant != spec.variant]


def _served(raw: object, directory: Path) -> tuple[Path, PortNames] | None:
    """Model file and port names of a variant, as written; None if it has no model file here, or is not valid."""
    try:
        spec = VariantSpec.model_validate(raw, context=FROM_DOCUMENT, by_alias=True, by_name=False)
    except ValidationError:
        return None
    if spec.model is None or not (directory / spec.model).is_file():
        return None
    return directory / spec.model, spec.port_names


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
    """Calls a model with its tensors one by one; returns its scores only, as a variant has one output.

    `score_form`: the form of the scores; logits are converted.
    """

    def __init__(self, module: nn.Module, form: CallForm) -> None:
        super().__init__()
        self.module, self._form = module, form
        self.score_form = ScoreForm(Form.LOGITS)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return converted(class_scores(self._form.call(self.module, tensors)), self.score_form)


def _export(
    module: nn.Module, spec: ExportSpec, inputs: CallArguments, path: Path, siblings: Sequence[Sibling]
) -> tuple[float, tuple[str, ...]]:
    """Export to `path`, with the ports of the first sibling, and scores in its form.

    Returns the largest difference from torch, and notes.
    """
    like = siblings[0] if siblings else None
    wanted = _wanted_ports(inputs.names, like)
    names = [port.name for port in wanted.inputs]
    scores = _Scores(module.cpu(), inputs.form).eval()
    tensors = [value[:EXPORT_ROWS].cpu() for value in inputs.tensors]
    notes = _match_form(scores, dict(zip(names, tensors, strict=True)), siblings)
    _write_onnx(scores, tuple(value[:2] for value in tensors), path, wanted, names, spec.opset)
    with torch.no_grad():
        expected = scores(*tensors).numpy()
    module.train()
    if like is not None:
        _check_ports(wanted, _ports(path), like.path)
    found = _served_scores(path, dict(zip(names, tensors, strict=True)))
    if found.shape != expected.shape:
        raise TrainingError(f"the exported model gives {found.shape} in place of {expected.shape}")
    max_difference = float(np.max(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))))
    if not max_difference <= MAX_DIFFERENCE:
        raise TrainingError(
            f"the exported model differs from torch by {max_difference:.2g}; {MAX_DIFFERENCE:g} is allowed"
        )
    return max_difference, notes


def _write_onnx(
    scores: _Scores,
    example: tuple[torch.Tensor, ...],
    path: Path,
    ports: OnnxPorts,
    names: Sequence[str],
    opset: int,
) -> None:
    """Write the model's file. TrainingError, with the user's line, if an operator has no counterpart in ONNX."""
    with warnings.catch_warnings(), torch.no_grad(), _plain_attention(scores.module), _no_graph_dumps():
        warnings.simplefilter("ignore")  # the TorchScript exporter, which needs no further package, is deprecated
        try:
            torch.onnx.export(
                scores,
                example,
                str(path),
                input_names=names,
                output_names=[ports.output.name],
                dynamic_axes={name: {0: "n"} for name in (*names, ports.output.name)},
                opset_version=opset,
                dynamo=False,
            )
        except Exception as error:
            place = _place_of(error, scores, example) or place_and_reason(error).partition(": ")[0]
            raise TrainingError(f"to ONNX (opset {opset}){place}: {_first_line(error)}") from error


def _served_scores(path: Path, rows: Mapping[str, torch.Tensor]) -> np.ndarray:
    """What onnxruntime computes for these rows. TrainingError if it cannot run the file."""
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        read = {port.name for port in session.get_inputs()}  # the exporter leaves out what the model does not read
        return np.asarray(session.run(None, {name: value.numpy() for name, value in rows.items() if name in read})[0])
    except Exception as error:  # onnxruntime's errors have no common class
        size = max((len(value) for value in rows.values() if value.dim()), default=0)
        raise TrainingError(
            f"onnxruntime cannot run the exported model on {size} rows: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _place_of(error: Exception, scores: _Scores, example: tuple[torch.Tensor, ...]) -> str:
    """` at FILE:LINE` of the operator that an exporter's error names; empty if it names none that can be traced."""
    operator = re.search(r"'(aten::\w+)'", str(error))
    if operator is None:
        return ""
    try:
        graph, _ = torch.jit._get_trace_graph(scores, example)[:2]
        ranges = [node.sourceRange() for node in graph.nodes() if node.kind() == operator[1]]
    except Exception:  # noqa: BLE001  # only to name the line
        return ""
    frames = [line for text in ranges[:1] for line in text.splitlines()]
    users = [match for line in frames if (match := re.match(r"(.+)\((\d+)\): ", line)) and is_users_file(match[1])]
    return f" at {users[0][1]}:{users[0][2]}" if users else ""


@contextmanager
def _no_graph_dumps() -> Iterator[None]:
    """Context in which the exporter prints no graph when it fails, and encoder layers take no path of their own.

    The fused path of torch's encoder layers, in evaluation mode, has no counterpart in ONNX.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    log = torch._C._jit_onnx_log  # the exporter turns it on itself, whatever it was
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch._C._jit_onnx_log = log


def _match_form(scores: _Scores, rows: Mapping[str, torch.Tensor], siblings: Sequence[Sibling]) -> tuple[str, ...]:
    """Have the model give its scores in the form of the first sibling; returns notes on what was done or differs."""
    forms = forms_of(siblings, {name: value.numpy() for name, value in rows.items()})
    with torch.no_grad():
        trained = form_of(scores(*rows.values()).float().numpy())
    notes: list[str] = []
    first = next(iter(forms.items()), None)
    if first is not None and trained.form is Form.LOGITS and first[1].form is not Form.LOGITS:
        scores.score_form = trained = first[1]
        notes.append(f"the exported model gives {trained.form}, as {first[0]} does: the trained one gives logits")
    if note := mismatch_note(trained.form, forms):
        notes.append(note)
    return tuple(notes)


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


def _wanted_ports(arguments: Sequence[str], like: Sibling | None) -> OnnxPorts:
    """Ports for these arguments: those of the variant `like`. TrainingError if it does not take the same inputs."""
    if like is None:
        names = ["input"] if len(arguments) == 1 else arguments
        return OnnxPorts(tuple(OnnxPort(name, 0, ()) for name in names), OnnxPort("output", 0, ()))
    found = _ports(like.path, like.names)
    by_name = {port.name: port for port in found.inputs}
    if len(found.inputs) == len(arguments) == 1:
        return found
    if by_name.keys() != set(arguments):
        raise TrainingError(
            f"the trained model takes {', '.join(arguments)}, and {like.path} {', '.join(by_name)}: variants of an "
            "operator must take the same"
        )
    return OnnxPorts(tuple(by_name[name] for name in arguments), found.output)


def _ports(path: Path, names: PortNames = PortNames()) -> OnnxPorts:
    """The ports of a model. TrainingError if it has several outputs, of which the variant names none."""
    graph = onnx.load(str(path), load_external_data=False).graph
    constants = {constant.name for constant in graph.initializer}
    sent = [value for value in graph.output if names.output in (None, value.name)]
    if len(sent) != 1:
        outputs = ", ".join(value.name for value in graph.output)
        raise TrainingError(f"{path} has the outputs {outputs}; one is needed: name it in its variant, output: NAME")
    inputs = tuple(_port(value) for value in graph.input if value.name not in constants)
    return OnnxPorts(inputs, _port(sent[0]))


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


def _maps_like(names: PortNames, path: Path) -> str:
    """The keys of the variant's line that name tensors: the exported model has the names of the sibling's model."""
    given = _ports(path).output.name
    outputs = {edge_output: name for edge_output, name in names.outputs.items() if name == given}
    maps = {"inputs": dict(names.inputs), "outputs": outputs}
    return "".join(f", {key}: {json.dumps(found)}" for key, found in maps.items() if found)


def _entry(variant: str, model: str, digest: str, maps: str) -> str:
    return f"{variant}: {{model: {model}, sha256: {digest}{maps}}}"


def _workflow_with_line(path: Path, spec: ExportSpec, entry: str, digest: str) -> Path | None:
    """Path of a temporary copy of the workflow with the variant's line; None if the line cannot be inserted."""
    text = path.read_text(encoding="utf-8")
    changed = _insert_line(text.splitlines(keepends=True), spec, entry)
    if changed is None:
        return None
    partial = path.with_name(f".{path.name}.partial")
    write_file(partial, changed)
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
