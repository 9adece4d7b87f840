"""training.yaml: a model, its data, and how it is trained. Read without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from jellybean.documents.checks.references import check_reference
from jellybean.documents.overrides import apply_override
from jellybean.documents.schema.error_words import check_tree
from jellybean.documents.schema.fields import Bandwidth, Duration, Name, Size, Strict
from jellybean.documents.schema.reader import Tree, read_file
from jellybean.documents.schema.units import UnitError, close, shown
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_solver.pipeline import SCHEDULES

TRAINING_FILE = "training.yaml"
AUTO = "auto"
LOSSES = ("cross_entropy", "mse")
_FUNCTION = re.compile(r"[^:\s]+:[A-Za-z_]\w*")
_TEMPLATE = (
    "write it; a few lines are enough: `kind: Training`, `model: nets.py:FUNCTION`, `data: nets.py:FUNCTION`, "
    "`epochs: 5`, `batch: 64`, `optimizer: {name: adam, lr: 0.001}` (docs/training.md)"
)


def _function(text: str) -> str:
    if not _FUNCTION.fullmatch(text):
        raise UnitError(f"{shown(text)} names no function", "write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    return text


def _model_file(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".onnx" or "\\" in text or "\0" in text:
        raise UnitError(f"{shown(text)} is no place of a model in the folder", "write for example models/tuned.onnx")
    return text


def _schedule(text: str) -> str:
    if text != AUTO and text not in SCHEDULES:
        hint = close(text, SCHEDULES) or f"there are auto, {', '.join(SCHEDULES)}"
        raise UnitError(f"no schedule is called {shown(text)}", hint)
    return text


def _loss(text: str) -> str:
    if text not in LOSSES and not _FUNCTION.fullmatch(text):
        raise UnitError(
            f"no loss is called {shown(text)}",
            close(text, LOSSES) or f"there are {', '.join(LOSSES)}, or write FILE.py:FUNCTION",
        )
    return text


def _data_kind(given: object) -> str:
    return "(folder)" if isinstance(given, dict | FolderSpec) else "(function)"


Function = Annotated[str, AfterValidator(_function)]
Count = Annotated[int, Field(ge=1)]
Processes = Annotated[int, Field(ge=1, le=65536)]
Positive = Annotated[float, Field(strict=False, gt=0)]
NotNegative = Annotated[float, Field(strict=False, ge=0)]


class OptimizerSpec(Strict):
    """How weights move."""

    name: Literal["sgd", "adam", "adamw"]
    lr: Positive
    momentum: Annotated[float, Field(strict=False, ge=0, lt=1)] = 0.0
    weight_decay: NotNegative = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.momentum and self.name != "sgd":
            raise UnitError(f"{self.name} has no momentum", "remove it, or take sgd")
        return self


class LrSpec(Strict):
    """The learning rate over the run, as a share of the optimizer's own."""

    name: Literal["constant", "linear", "cosine"] = Field(description="linear and cosine end at 0.")
    warmup: NotNegative = Field(default=0.0, description="Epochs in which it rises from 0 to its own.")


class CheckpointSpec(Strict):
    """What is kept of a run, so that it can go on."""

    every: Count = Field(default=1, description="Epochs.")
    keep: Count = Field(default=2, description="Of the newest.")


class ExportSpec(Strict):
    """The trained model as a variant of the workflow in the same folder."""

    operator: Name
    variant: Name
    model: Annotated[str, AfterValidator(_model_file)] = Field(
        description="The ONNX file that is written, in the folder: models/tuned.onnx"
    )
    opset: int = Field(default=17, ge=13, le=23)


class FolderSpec(Strict):
    """Pictures in folders that are named by their labels: FOLDER/LABEL/*.png."""

    folder: str
    size: Annotated[int, Field(ge=1, le=4096)] = Field(description="Pictures become SIZE x SIZE.")
    channels: Literal[1, 3] = 3
    heldout: Annotated[float, Field(strict=False, gt=0, lt=1)] = Field(default=0.2, description="Share to measure on.")


class TrainingDocument(Strict):
    """training.yaml."""

    kind: Literal["Training"]
    description: str = ""
    model: Function = Field(description="Gives a torch.nn.Module that maps a batch to scores or values.")
    data: Annotated[
        Annotated[Function, Tag("(function)")] | Annotated[FolderSpec, Tag("(folder)")], Discriminator(_data_kind)
    ] = Field(description="Gives {train: (inputs, targets), test: (inputs, targets)}, arrays; or a labelled folder.")
    loss: Annotated[str, AfterValidator(_loss)] = Field(
        default="cross_entropy", description="cross_entropy, mse, or a function of outputs and targets: a mean."
    )
    epochs: Count
    batch: Count = Field(description="Samples per update, all replicas counted.")
    microbatches: Count = Field(default=1, description="Per update and replica.")
    optimizer: OptimizerSpec
    lr_schedule: LrSpec = LrSpec(name="constant")
    devices: Processes = Field(default=1, description="Stages are spread over so many processes.")
    replicas: Processes = Field(default=1, description="Pipelines beside each other, each with its part of the batch.")
    schedule: Annotated[str, AfterValidator(_schedule)] = Field(
        default=AUTO, description="The fastest that fits and computes what one device would, or one by name."
    )
    staleness: bool = Field(default=False, description="Let auto take schedules without a flush, too.")
    chunks: Count | None = Field(default=None, description="Stages per device, for interleaved.")
    precision: Literal["float32", "bfloat16"] = "float32"
    compress: Literal["none", "bfloat16", "float16"] = Field(default="none", description="What crosses between stages.")
    recompute: bool = Field(default=False, description="Keep inputs only and run forwards twice.")
    clip: Positive | None = Field(default=None, description="Largest norm of a gradient.")
    memory_bytes: Size | None = Field(default=None, alias="memory", description="Of a device, for auto.")
    bandwidth_bytes_per_s: Bandwidth = Field(default=1.25e9, alias="bandwidth", description="Between devices.")
    timeout_s: Duration = Field(default=600.0, alias="timeout", gt=0, description="Longest that a rank stands still.")
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    checkpoint: CheckpointSpec = CheckpointSpec()
    export: ExportSpec | None = None

    @field_validator("microbatches", "replicas")
    @classmethod
    def _divides(cls, value: int, info: ValidationInfo) -> int:
        batch, parts = info.data.get("batch"), value * int(info.data.get("microbatches", 1))
        if batch is not None and batch < parts:
            raise UnitError(
                f"a batch of {batch} has less than one sample for each of {parts} micro-batches",
                "enlarge batch, or take fewer",
            )
        return value

    @property
    def ranks(self) -> int:
        """Processes."""
        return self.devices * self.replicas


def load_training(directory: Path, overrides: Sequence[str] = (), *, references: bool = False) -> TrainingDocument:
    """DIR/training.yaml, checked, `--set` options applied. DocumentError with every problem.

    `references`: what it names must be here too, as for a run; not where it is rendered for another place.
    """
    path = directory / TRAINING_FILE
    if not path.exists():
        raise DocumentError([DocumentProblem(str(path), None, None, "", "there is no such file", _TEMPLATE)])
    tree = read_file(path)
    problems = [problem for text in overrides if (problem := apply_override(tree, text, "epochs=3")) is not None]
    document = check_tree(TrainingDocument, tree).document
    if references:
        _check_references(tree, directory)
    if problems or tree.problems or document is None:
        raise DocumentError([*problems, *tree.problems])
    return document


def _check_references(tree: Tree, directory: Path) -> None:
    """Problems of the functions and the folder that the tree names, whatever else is wrong with it."""
    data = tree.data if isinstance(tree.data, dict) else {}
    for key in ("model", "data", "loss"):
        value = data.get(key)
        if isinstance(value, str) and _FUNCTION.fullmatch(value):
            try:
                check_reference(directory, value)
            except UnitError as error:
                tree.add((key,), str(error), error.hint)
    spec = data.get("data")
    folder = spec.get("folder") if isinstance(spec, dict) else None
    if isinstance(folder, str) and "\0" not in folder and not (directory / folder).is_dir():
        beside = [item.name for item in directory.iterdir() if item.is_dir()]
        tree.add(
            ("data", "folder"), f"there is no folder {shown(folder)}", close(folder, beside) or f"looked in {directory}"
        )
