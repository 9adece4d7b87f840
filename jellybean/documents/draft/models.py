"""ONNX files as operators with variants, by their names and their inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.documents.checks.tensors import ModelFileError, ModelSignature, Port, Tensor, read_model
from jellybean.documents.draft.unfed_inputs import guessed_constant, guessed_state
from jellybean.documents.schema.todos import PLACEHOLDER
from jellybean.errors import InputError
from jellybean.folders import walk_tree
from jellybean_agent import describe_error, unserved_reason
from jellybean_solver import JellyBeanError

Rows = int | str | None  # a leading dimension: a number, the name of a symbolic size, or unknown
_GENERIC_STEM = "model"  # what exporters call the file; its folder has the name of the model
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_SEPARATORS = "-_. "
_MAX_NAME = 40
# Sizes that exporters number themselves say nothing about whether input and output have equally many rows.
_NUMBERED_SIZE = re.compile(r".*_dim_\d+|unk__\d+|\d+")


@dataclass(frozen=True)
class DraftModel:
    """A model file with its name and signature. `rows`: the leading dimension of each input and output, by name.

    The inputs of the signature are those that requests bring: `constants` has guessed values of others, `state` the
    inputs that take an output of the stream's chunk before. The first output is the answer. `label`: the file's own
    first output, if that is a class label before the scores.
    """

    name: str
    path: Path
    signature: ModelSignature
    rows: Mapping[str, Rows]
    label: str | None = None
    constants: Mapping[str, bool | int | float] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        """The output that is the answer, if it is not the first of the file."""
        return None if self.label is None else self.signature.outputs[0].name

    @property
    def fans_out(self) -> bool:
        """True if the first output has a number of rows that is not that of any input, as a detector's has."""
        given = [self.rows[port.name] for port in self.signature.inputs]
        made = self.rows[self.signature.outputs[0].name]
        if isinstance(made, int) or made is None:
            return made is not None and made > 1 and all(rows == 1 for rows in given)
        if all(rows == 1 for rows in given):
            return True
        return not _NUMBERED_SIZE.fullmatch(made) and made not in given and None not in given

    @property
    def children(self) -> int | None:
        """Rows that it makes of one request, if it fans out and the number is fixed."""
        made = self.rows[self.signature.outputs[0].name]
        return made if self.fans_out and isinstance(made, int) else None

    @property
    def gathers(self) -> bool:
        """True if it makes one row of any number of rows."""
        return self.rows[self.signature.outputs[0].name] == 1 and all(
            not isinstance(self.rows[port.name], int) for port in self.signature.inputs
        )


@dataclass(frozen=True)
class DraftOperator:
    """An operator with its variants by name."""

    name: str
    variants: Mapping[str, DraftModel]

    @property
    def first(self) -> DraftModel:
        return next(iter(self.variants.values()))

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.first.signature.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.first.signature.outputs


def read_models(files: Sequence[Path]) -> tuple[DraftModel, ...]:
    """Read ONNX files, ordered by name; of a folder all.

    InputError, with a line for each, for missing and other files, and equal names.
    """
    models: dict[str, DraftModel] = {}
    named: dict[str, Path] = {}
    problems: list[str] = []
    for file in _all_files(files, problems):
        name = model_name(file)
        if (other := named.setdefault(name, file)) is not file:
            problems.append(f"{other} and {file} would both be called {name}: rename one of them")
            continue
        try:
            models[name] = read_model_file(name, file)
        except OSError as error:
            problems.append(f"{file} cannot be read: {describe_error(error)}")
        except JellyBeanError as error:
            message = str(error)  # that of a `ModelFileError` begins with the file's name
            is_named = message.startswith(f"{file.name} ")
            problems.append(f"{file}{message.removeprefix(file.name)}" if is_named else f"{file}: {message}")
    if problems:
        raise InputError("\n".join(problems))
    return tuple(models[name] for name in sorted(models))


def read_model_file(name: str, file: Path) -> DraftModel:
    """Read one ONNX file. ModelFileError if it is invalid, OSError if it cannot be read."""
    signature = read_model(file)
    index = _answer(signature.outputs)
    outputs = list(signature.outputs)
    label = outputs[0].name if index else None
    outputs.insert(0, outputs.pop(index))
    constants = {port.name: value for port in signature.inputs if (value := guessed_constant(port)) is not None}
    if len(constants) == len(signature.inputs):
        raise ModelFileError(
            f"each input ({', '.join(constants)}) is a single number (shape []), and a request's tensor has a leading "
            "dimension",
            "export the model with shape [1], or with a dynamic first dimension",
        )
    inputs = tuple(port for port in signature.inputs if port.name not in constants)
    state = guessed_state(inputs, outputs[1:])
    inputs = tuple(port for port in inputs if port.name not in state)
    fed = ModelSignature(inputs, tuple(outputs))
    return DraftModel(name, file, fed, _rows(file), label, constants, state)


def _answer(outputs: Sequence[Port]) -> int:
    """Index of the output that is the answer: the first, or the scores if that is a class label.

    Exporters of classifiers (skl2onnx) write the label first: text, which is not served, or one integer a row.
    """
    label = outputs[0].tensor
    served = [index for index, port in enumerate(outputs) if not unserved_reason(port.tensor.dtype)]
    scores = [
        index
        for index in served
        if (tensor := outputs[index].tensor).dtype.startswith("float")
        and tensor.shape is not None
        and len(tensor.shape) == 2
    ]
    if unserved_reason(label.dtype):
        return next(iter([*scores, *served]), 0)
    is_class = "int" in label.dtype and label.shape is not None and len(label.shape) == 1
    return next(iter(scores), 0) if is_class else 0


def _all_files(given: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    """The files that are given, and the ONNX files of folders; a folder without any is one of the `problems`."""
    for path in given:
        files = [path]
        if path.is_dir():
            files = sorted(file for file, _ in walk_tree(path) if file.name.endswith(".onnx"))
            if not files:
                problems.append(f"{path} has no ONNX files (*.onnx)")
        yield from files


def model_name(file: Path) -> str:
    """The file's name without its ending, or its folder's name for `model.onnx` and the like."""
    stem = file.name.removesuffix(".onnx")
    if stem == _GENERIC_STEM or stem.startswith((f"{_GENERIC_STEM}-", f"{_GENERIC_STEM}_")):
        folder = file.resolve().parent
        folder = folder.parent if folder.name == "onnx" else folder  # as Hugging Face's exporter has it
        stem = folder.name + stem.removeprefix(_GENERIC_STEM)
    return valid_name(stem)


def valid_name(text: str) -> str:
    """The text as a name that documents accept."""
    name = _NOT_IN_NAMES.sub("-", text).strip("-")[:_MAX_NAME].strip("-") or "unnamed"
    return name.lower() if name == PLACEHOLDER else name


def _rows(file: Path) -> Mapping[str, Rows]:
    import onnx

    graph = onnx.load(str(file), format="protobuf", load_external_data=False).graph
    sizes: dict[str, Rows] = {}
    for value in (*graph.input, *graph.output):
        shape = value.type.tensor_type.shape.dim
        kind = shape[0].WhichOneof("value") if shape else None
        size = (
            max(shape[0].dim_value, 0) if kind == "dim_value" else shape[0].dim_param if kind == "dim_param" else None
        )
        sizes[value.name] = size or None
    return sizes


def group_variants(models: Sequence[DraftModel]) -> tuple[DraftOperator, ...]:
    """Models whose names begin alike and whose tensors are alike become variants of one operator."""
    groups: dict[tuple[str, tuple[Tensor, ...], tuple[tuple[str, str], ...]], list[DraftModel]] = {}
    for model in models:
        tensors = tuple(_comparable(port.tensor) for port in (*model.signature.inputs, *model.signature.outputs))
        groups.setdefault((_first_word(model.name), tensors, tuple(model.state.items())), []).append(model)
    operators: dict[str, DraftOperator] = {}
    for group in groups.values():
        operator = _operator(group)
        if operator.name in operators:  # models of the same first word with other tensors: the whole names
            operator = DraftOperator(group[0].name, operator.variants)
        operators[operator.name] = operator
    return tuple(operators.values())


def _comparable(tensor: Tensor) -> Tensor:
    """The tensor without its leading dimension, which may be fixed in one variant and not in another."""
    return Tensor(tensor.dtype, None if tensor.shape is None else (None, *tensor.shape[1:]))


def _first_word(name: str) -> str:
    """The letters with which a name begins: `resnet` of resnet18, `detect` of detect-small."""
    return re.match(r"[A-Za-z]*", name)[0].lower() or name  # type: ignore[index]  # matches the empty text too


def _operator(models: Sequence[DraftModel]) -> DraftOperator:
    names = [model.name for model in models]
    if len(names) == 1:
        return DraftOperator(names[0], {names[0]: models[0]})
    common = _common_start(names)
    rests = [name[len(common) :] for name in names]
    if not all(rest == "" or rest[0] in _SEPARATORS or common[-1] in _SEPARATORS for rest in rests):
        cut = max((common.rfind(separator) for separator in _SEPARATORS), default=-1)
        counted = any(rest[:1].isdigit() for rest in rests)
        common = common[:cut] if cut > 0 else common.rstrip("0123456789") if counted else common
    common = common.rstrip(_SEPARATORS) or _first_word(names[0])
    variants = {_variant(model.name, common): model for model in models}
    return DraftOperator(common, variants if len(variants) == len(models) else {model.name: model for model in models})


def _common_start(names: Sequence[str]) -> str:
    """The characters with which all names begin."""
    shortest = min(names, key=len)
    return next(
        shortest[:size] for size in range(len(shortest), -1, -1) if all(n[:size] == shortest[:size] for n in names)
    )


def _variant(name: str, operator: str) -> str:
    """What a model's name says beyond its operator's; the whole name where that is no word of its own."""
    rest = name[len(operator) :]
    return rest.strip(_SEPARATORS) if rest[:1] in tuple(_SEPARATORS) and rest.strip(_SEPARATORS) else name
