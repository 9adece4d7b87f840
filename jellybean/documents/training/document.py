"""training.yaml: a model, its data and the training settings. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from jellybean.documents.overrides import apply_override
from jellybean.documents.schema.fields import Bandwidth, Duration, Size
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.validation import validate_tree
from jellybean.documents.training.data import Count, DataSpec, Processes, TrainingFunction, data_name
from jellybean.documents.training.lora import LoraSpec
from jellybean.documents.training.loss import LossSetting, LossSpec, known_or_function
from jellybean.documents.training.optimization import (
    METRICS,
    EarlyStopSpec,
    LrSpec,
    OptimizerSpec,
    Positive,
)
from jellybean.documents.training.plan import PlanKeys, planned_devices
from jellybean.documents.training.references import check_references
from jellybean.documents.training.run import CheckpointSpec, ExportSpec, ParallelKeys, SyncSpec
from jellybean.documents.training.schedule import ScheduleName, check_saved_within_epochs, check_schedule
from jellybean.documents.training.servers import check_servers
from jellybean.documents.training.tensor import TensorSetting, TensorSpec
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.quantities import InvalidValueError, did_you_mean

TRAINING_FILE = "training.yaml"
AUTO = "auto"
_TEMPLATE = (
    "write it; a few lines are enough: `kind: Training`, `model: nets.py:FUNCTION`, `data: nets.py:FUNCTION`, "
    "`epochs: 5`, `batch: 64`, `optimizer: {name: adam, lr: 0.001}` (docs/training.md)"
)


def metric_name(text: str) -> str:
    """The name of a metric: of a function without its file."""
    return text.rpartition(":")[2]


def _metric(text: str) -> str:
    advice = f"known metrics: {', '.join(METRICS)}, or write FILE.py:FUNCTION"
    return known_or_function(text, METRICS, "metric", advice)


def _is_squared_error(loss: LossSpec | None) -> bool:
    return loss is not None and loss.function == "mse"


class TrainingDocument(PlanKeys, ParallelKeys):
    """training.yaml."""

    kind: Literal["Training"]
    description: str = ""
    model: TrainingFunction | None = Field(default=None, description="Function that returns a torch.nn.Module.")
    stages: TrainingFunction | None = Field(
        default=None,
        description="In place of model, for models that cannot be traced: a function that returns a list of modules, "
        "each called with what the one before returns.",
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="Pretrained weights: a safetensors file or a folder of them. The function then only builds the "
        "model, and each process reads the weights of its own stages.",
    )
    lora: LoraSpec | None = Field(
        default=None, description="Train low-rank adapters of the model, and freeze its own weights."
    )
    data: DataSpec = Field(
        description="Function that returns arrays {train: (inputs, targets), test: (inputs, targets)}, where inputs "
        "may be a dict of arguments, or data sets, DataLoaders or streams of such rows; or a CSV file; or a labelled "
        "folder."
    )
    loss: LossSetting = Field(
        default=LossSpec(function="cross_entropy"),
        description="cross_entropy, mse, a function of outputs and targets, or model: the model returns its loss; or "
        "settings, with what counts in it.",
    )
    epochs: Count
    batch: Count = Field(description="Samples per update, over all replicas.")
    microbatches: Count = Field(default=1, description="Micro-batches per update and replica.")
    optimizer: OptimizerSpec
    lr_schedule: LrSpec = LrSpec(name="constant")
    devices: Processes = Field(
        default=1, description="Pipeline devices: processes among which the stages are distributed."
    )
    min_devices: Processes | None = Field(
        default=None,
        description="Smallest number of devices with which a run goes on that torchrun restarts with fewer processes.",
    )
    replicas: Processes = Field(
        default=1, description="Data-parallel copies of the pipeline; each processes its part of the batch."
    )
    tensor: TensorSetting = Field(
        default=TensorSpec(ways=1), description="Processes that share each layer, or settings."
    )
    sync: SyncSpec = SyncSpec()
    schedule: ScheduleName = Field(
        default=AUTO,
        description="A pipeline schedule, or auto: the fastest that fits into memory and keeps synchronous updates.",
    )
    staleness: bool = Field(default=False, description="Let auto choose schedules without a flush (stale weights) too.")
    chunks: Count | None = Field(default=None, description="Stages per device, for interleaved.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="auto: a GPU per process, or the CPU if the machine has none. cuda: processes may share a GPU.",
    )
    precision: Literal["float32", "bfloat16", "bfloat16-weights", "float16"] = Field(
        default="float32",
        description="Mixed precision: bfloat16, float16 with loss scaling, or bfloat16 weights with float32 masters.",
    )
    compress: Literal["none", "bfloat16", "float16", "auto"] = Field(
        default="none",
        description="Type of tensors sent between stages; auto: bfloat16 where it saves time.",
    )
    recompute: bool = Field(
        default=False, description="Activation recomputation: keep only stage inputs and repeat the forward pass."
    )
    clip: Positive | None = Field(default=None, description="Gradient norm above which gradients are clipped.")
    memory_bytes: Size | None = Field(
        default=None, alias="memory", description="Memory of a device, for schedule: auto."
    )
    bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, alias="bandwidth", description="Bandwidth between devices; measured by default."
    )
    timeout_s: Duration = Field(
        default=600.0, alias="timeout", gt=0, description="Longest time without progress of a rank."
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    metrics: Annotated[tuple[Annotated[str, AfterValidator(_metric)], ...], Field(strict=False)] = Field(
        default=("accuracy",),
        description="What is measured on the test rows: accuracy, perplexity, or a function of outputs and targets.",
    )
    early_stop: EarlyStopSpec | None = None
    ema: Annotated[float, Field(strict=False, gt=0, lt=1)] | None = Field(
        default=None,
        description="Decay of the weights' moving averages, which are then evaluated and exported: 0.999.",
    )
    checkpoint: CheckpointSpec = CheckpointSpec()
    export: ExportSpec | None = None

    @field_validator("microbatches", "replicas", "tensor")
    @classmethod
    def _divides(cls, value: int | TensorSpec, info: ValidationInfo) -> int | TensorSpec:
        batch, parts = info.data.get("batch"), value.row_parts if isinstance(value, TensorSpec) else value
        parts *= info.data.get("microbatches", 1) * info.data.get("replicas", 1)
        if batch is not None and batch < parts:
            raise InvalidValueError(
                f"a batch of {batch} has less than one sample for each of {parts} micro-batches",
                "increase batch, or use fewer",
            )
        return value

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        names = [metric_name(text) for text in value]
        twice = next((name for name in names if names.count(name) > 1 or name == "loss"), None)
        if twice is not None:
            raise InvalidValueError(f"two metrics have the name {twice!r}", "rename one; `loss` is always measured")
        if "perplexity" in value and _is_squared_error(info.data.get("loss")):
            raise InvalidValueError("perplexity is exp of a mean cross-entropy, and the loss is mse", "remove it")
        return value

    @field_validator("device", mode="before")
    @classmethod
    def _check_device(cls, value: Any) -> Any:
        if value in ("gpu", "GPU"):  # the nearest name would be cpu
            raise InvalidValueError(
                f"{value!r} is not one of auto, cpu, cuda", "write auto, which takes a GPU, or cuda"
            )
        return value

    @field_validator("early_stop")
    @classmethod
    def _check_early_stop(cls, value: EarlyStopSpec | None, info: ValidationInfo) -> EarlyStopSpec | None:
        if value is None or "metrics" not in info.data:
            return value
        known = ["loss", *map(metric_name, info.data["metrics"])]
        if value.metric not in known:
            hint = did_you_mean(value.metric, known) or f"it is one of {', '.join(known)}; others go into `metrics`"
            raise InvalidValueError(f"{value.metric!r} is not measured", hint)
        if value.mode is None and value.metric != "loss" and value.metric not in METRICS:
            raise InvalidValueError(f"whether more of {value.metric} is better is not known", "write mode: max, or min")
        return value

    @property
    def data_name(self) -> str:
        """The data source, for messages."""
        return data_name(self.data)

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if (self.model is None) == (self.stages is None):
            given = "both model and stages" if self.model is not None else "no model"
            hint = "write `model: FILE.py:FUNCTION`, or `stages`"
            raise InvalidValueError(f"the document names {given}", hint, keys=("model", "stages"))
        return self

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if self.min_devices is not None and self.min_devices > self.devices:
            message = f"min_devices is {self.min_devices} and devices {self.devices}"
            raise InvalidValueError(message, "write at most as many as devices", keys=("min_devices", "devices"))
        return self

    @model_validator(mode="after")
    def _check_processes_of_replica(self) -> Self:
        check_schedule(self)
        check_servers(self)
        if self.checkpoint.updates is not None:
            check_saved_within_epochs(self.schedule)
        return self

    @model_validator(mode="after")
    def _check_parallel(self) -> Self:
        if self.parallel is not None and (self.plan or self.objective or self.sync.has_servers or self.tensor.by_rows):
            raise InvalidValueError(
                "`parallel: auto` is not for plans, `conv: data` or parameter servers",
                "remove it, or them",
                keys=("parallel", "plan", "objective", "tensor", "sync.way"),
            )
        if self.processes is not None and self.processes < self.device_processes:
            least = self.device_processes
            raise InvalidValueError(
                f"processes is {self.processes}, and devices x replicas x tensor {least}",
                f"write at least {least}, or leave out `processes`",
            )
        if self.compress == AUTO and (self.plan or self.objective):
            keys = ("compress", "plan", "objective")
            raise InvalidValueError("`compress: auto` is not for plans", "write bfloat16, or remove it", keys=keys)
        return self

    def on(self, processes: int) -> Self:
        """The document for a run of so many processes, where `min_devices` allows other numbers of devices.

        Replicas stay: a run has the same updates with any number of devices. InvalidValueError if it cannot run so.
        """
        if processes == self.ranks:
            return self
        if self.parallel == AUTO and processes >= self.device_processes:
            return self.model_copy(update={"processes": processes})
        devices, left = divmod(processes - self.sync.server_processes, self.replicas * self.tensor.ways)
        least = self.devices if self.min_devices is None else self.min_devices
        if left or not least <= devices <= self.devices:
            allowed = f"{least} to {self.devices}" if least < self.devices else f"{self.devices}"
            raise InvalidValueError(
                f"{processes} processes, and the document asks for {allowed} devices x {self.replicas} replicas"
                f"{self.tensor}",
                f"torchrun --nproc-per-node {self.ranks}, or change `devices` or `min_devices`",
            )
        return self.model_copy(update={"devices": devices})

    @property
    def model_name(self) -> str:
        """The function that makes the model or its stages."""
        return self.model or self.stages or ""

    @property
    def ranks(self) -> int:
        """Number of processes: of all replicas, then the parameter servers; or those that `parallel: auto` starts."""
        return self.processes or self.device_processes + self.sync.server_processes

    @property
    def device_processes(self) -> int:
        """Number of processes of all replicas' devices, as the document has them."""
        return self.devices * self.replicas * self.tensor.ways

    @property
    def workers(self) -> int:
        """Number of parts into which the rows of an update are divided, each of them in micro-batches."""
        return self.replicas * self.tensor.row_parts


def load_training(directory: Path, overrides: Sequence[str] = (), *, references: bool = False) -> TrainingDocument:
    """Read and validate DIR/training.yaml after applying `--set` options. DocumentError lists all problems.

    `references`: also check that the named functions and folder exist on this machine.
    """
    path = directory / TRAINING_FILE
    if not path.exists():
        raise DocumentError([DocumentProblem(str(path), None, None, "", "file not found", _TEMPLATE)])
    tree = read_file(path)
    problems = [problem for text in overrides if (problem := apply_override(tree, text, "epochs=3")) is not None]
    document = validate_tree(TrainingDocument, tree).document
    if document is not None and document.plan is not None:
        given = document.devices if "devices" in document.model_fields_set else None
        document = document.model_copy(update={"devices": planned_devices(tree, directory, document.plan, given)})
    if references:
        check_references(tree, directory)
    if problems or tree.problems or document is None:
        raise DocumentError([*problems, *tree.problems])
    return document
