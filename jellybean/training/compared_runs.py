"""What is compared at the start of a run: calls of the plain module, and of the stages of the run, on this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from jellybean.pipeline.torch_gradients import gradient_digests, tensor_digest
from jellybean.pipeline.torch_saved import TemporaryFileError, activations_in_file
from jellybean.pipeline.torch_state import random_states, seed_generators
from jellybean.pipeline.torch_trace import flat_tensors
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.data.sampler import Division
from jellybean.training.errors import TrainingError
from jellybean.training.samples import Samples
from jellybean.training.stages.cut import CutModule
from jellybean.training.stages.evaluation_cut import EvaluationCut
from jellybean.training.stages.evaluation_pass import EvaluationStage
from jellybean.training.stages.interpreter import Interpreter, Place
from jellybean.training.stages.stage import LossFunction, StageCopy, StageSettings
from jellybean.training.stages.whole import WholeModel
from jellybean_solver.pipeline import Action, ActionKind, Schedule

GRADIENT = "the gradient of "
Digest: TypeAlias = torch.Tensor | None  # of a tensor; None where there is none
LEAST_CALLS = 3  # in training: Python that counts shows after the second
# Largest difference of digests, relative to the norm. The same operations on the same numbers in the same order differ
# by nothing; sums of gradients in another order by rounding: in double precision by that of single precision (6e-8), in
# which a layer may compute a part (an interpolation of positions). What a graph drops differs by far more.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4}
_TOLERANCE_16_BIT = 2e-2  # of gradients


@dataclass(frozen=True)
class ComparedRows:
    """Micro-batches of each size that occurs, in training and in the test."""

    training: tuple[Samples, ...]
    test: tuple[Samples, ...]


@dataclass(frozen=True)
class ComparedStages:
    """The stages of a run, and what they compute with.

    `results`: (training, evaluation) nest what the last stage returns. `graph`: of the model in training, which the
    stages are cut from. `copies`: number of processes that each have a copy of a stage.
    """

    training: CutModule
    evaluation: EvaluationCut
    results: tuple[Callable[[Sequence[Any]], Any], Callable[[Sequence[Any]], Any]]
    loss: LossFunction
    settings: StageSettings
    schedule: Schedule
    graph: fx.GraphModule
    copies: int = 1

    @property
    def called(self) -> set[int]:
        """The ids of the user's modules that the stages call as they are."""
        stages = [stage.module for stage in self.training.stages]
        parts = [part for stage in stages for part in stage.modules()]
        return {id(part) for part in parts} | {id(stage.model) for stage in stages if isinstance(stage, WholeModel)}


@dataclass
class Outcome:
    """What one call computed: digests by name, in the order of comparison."""

    mode: str
    rows: int
    values: dict[str, Digest] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def tolerance(self, what: str) -> float:
        """How far a value may be apart."""
        is_short = self.dtype not in _TOLERANCE
        if what.startswith(GRADIENT) and is_short:
            return _TOLERANCE_16_BIT
        return _TOLERANCE[torch.float32 if is_short else self.dtype]


def sizes_of(division: Division) -> tuple[int, ...]:
    """The sizes of the micro-batches of a pass, each once, those of the first iteration before those of the last."""
    iterations = dict.fromkeys((0, max(0, division.iterations - 1)))
    ends = (0, *range(1, division.parts))
    sizes = (len(division.part(iteration, number)) for iteration in iterations for number in ends)
    return tuple(size for size in dict.fromkeys(sizes) if size)


def rows_of_sizes(example: Callable[[int], Samples], sizes: Sequence[int], calls: int = 1) -> tuple[Samples, ...]:
    """Micro-batches of these sizes, at least `calls` of them, of rows that follow each other while there are any."""
    wanted = [*sizes, *(sizes[0] for _ in range(calls - len(sizes)))] if sizes else []
    every = example(sum(wanted))
    found, first = [], 0
    for size in wanted:
        first = first if first + size <= len(every) else 0
        found.append(every.take(slice(first, first + size)))
        first += size
    return tuple(found)


def outcomes(run: PlainRun | StagedRun, module: nn.Module, rows: ComparedRows) -> Iterator[Outcome]:
    """All calls of one update, with what each computed; then the first ones with the weights of another update."""
    for number, batch in enumerate(rows.training):
        seed_generators(number)
        yield run.train(batch)
    for batch in rows.test:
        yield run.evaluate(batch)
    with _negated(module):
        seed_generators(0)
        yield run.train(rows.training[0])
        for batch in rows.test[:1]:
            yield run.evaluate(batch)


@contextmanager
def _negated(module: nn.Module) -> Iterator[None]:
    """Context in which the trained weights are others: a change that no rounding keeps from being undone."""
    trained = [value for value in module.parameters() if value.requires_grad]
    with torch.no_grad():
        torch._foreach_neg_(trained)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_neg_(trained)


class PlainRun:
    """The module itself, on this process."""

    def __init__(self, module: nn.Module, stages: ComparedStages) -> None:
        self._module, self._stages = module, stages
        self._names = {id(value): name for name, value in module.named_parameters()}

    def train(self, batch: Samples) -> Outcome:
        """A micro-batch forward and backward."""
        module = self._module.train()
        weights = [value for value in module.parameters() if value.requires_grad]
        with (
            _failures_named(_plain_failure("in training mode", batch)),
            activations_in_file((*weights, *module.buffers())),
        ):
            with autocast_of(self._stages.settings):
                outputs = batch.inputs.call(module)
                loss = torch.zeros(())
                if batch.weight(slice(None)):  # a loss may fail on rows of which nothing counts
                    loss = self._stages.loss(outputs, batch.target(slice(None)))
            digests: list[Digest] = [None] * len(weights)
            if loss.requires_grad:
                digests = gradient_digests([loss], [torch.ones_like(loss)], weights)
        named = {id(value): digest for value, digest in zip(weights, digests, strict=True)}
        return _trained(self._module, self._stages.settings, batch, loss, named)

    def evaluate(self, batch: Samples) -> Outcome:
        """A micro-batch forward in evaluation mode."""
        module = self._module.eval()
        with (
            _failures_named(_plain_failure("in evaluation mode", batch)),
            torch.no_grad(),
            autocast_of(self._stages.settings),
        ):
            outputs = batch.inputs.call(module)
        module.train()
        return _evaluated(self._module, self._stages.settings, batch, outputs)


class StagedRun:
    """The run's stages, one after the other on this process."""

    def __init__(self, module: nn.Module, stages: ComparedStages) -> None:
        self._module, self._stages = module, stages
        cpu, last = torch.device("cpu"), len(stages.training.stages) - 1
        self._held = {
            (number, 0): stage.copy(stages.settings, self._loss if number == last else None, cpu)
            for number, stage in enumerate(stages.training.stages)
        }
        schedule = _in_order(stages.schedule)
        self._gradients = _GradientDigests(self._held, stages.training)
        transport: Any = None  # all stages are here, and nothing is sent
        updates: Any = _NoUpdates()
        self._interpreter = Interpreter(schedule, self._held, transport, updates, Place(0), self._gradients.collect)
        self._evaluation = [
            EvaluationStage(stage.module, stage.inputs.arguments, names, stages.settings.precision)
            for stage, names in zip(stages.evaluation.stages.stages, stages.evaluation.names, strict=True)
        ]

    def train(self, batch: Samples) -> Outcome:
        """A micro-batch forward and backward, through all stages."""
        module = self._module
        with (
            _failures_named(_staged_failure("in training mode", batch)),
            activations_in_file((*module.parameters(), *module.buffers())),
        ):
            self._gradients.clear()
            log = self._interpreter.run(_Feed(batch))
        return _trained(self._module, self._stages.settings, batch, log.losses[0], self._gradients.digests())

    def evaluate(self, batch: Samples) -> Outcome:
        """A micro-batch forward in evaluation mode, through all stages."""
        values: tuple[Any, ...] = ()
        with _failures_named(_staged_failure("in evaluation mode", batch)):
            for number, stage in enumerate(self._evaluation):
                arguments = [batch.inputs.tensors[index].clone() for index in stage.arguments]
                values = stage.run((*values, *arguments), _tensors(self._held[number, 0]))
        return _evaluated(self._module, self._stages.settings, batch, self._stages.results[1](values))

    def _loss(self, tensors: Any, target: Any) -> torch.Tensor:
        return self._stages.loss(self._stages.results[0](tensors), target)


@dataclass(frozen=True)
class _Feed:
    """One micro-batch, for an interpreter. Random numbers go on from stage to stage, as in the module."""

    batch: Samples

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self.batch.inputs.tensors[argument].clone() for argument in arguments)

    def target(self, microbatch: int) -> Any:
        return self.batch.target(slice(None))

    def factor(self, microbatch: int) -> float:
        return 1.0 if self.batch.weight(slice(None)) else 0.0

    def seed(self, microbatch: int, stage: int) -> tuple[Any, ...]:
        return random_states()


class _NoUpdates:
    """The updates of an iteration that has none."""

    loss_factor = 1.0

    def begin_iteration(self, settings: Sequence[Any]) -> None:
        """Nothing is pending."""


class _GradientDigests:
    """Takes the gradients of each backward pass from the stages, so that they are never in memory all at once.

    Those of weights in several stages are added up first.
    """

    def __init__(self, held: Mapping[tuple[int, int], StageCopy], cut: CutModule) -> None:
        self._held = held
        tied = {name for names in cut.tied.values() for name in names.items()}
        self._tied = {id(held[number, 0].versions.parameters[name]) for number, name in tied}
        self._digests: dict[int, Digest] = {}
        self._sums: dict[int, torch.Tensor] = {}

    def clear(self) -> None:
        """Begin with none."""
        self._digests, self._sums = {}, {}

    def collect(self) -> None:
        """Digest what the stages have, and take it from them."""
        for stage in self._held.values():
            for name, gradient in stage.gradient.items():
                key = id(stage.versions.parameters[name])
                if key in self._tied:
                    self._sums[key] = self._sums[key] + gradient if key in self._sums else gradient
                else:
                    self._digests[key] = tensor_digest(gradient)
            stage.gradient.clear()

    def digests(self) -> dict[int, Digest]:
        """By the id of the weight."""
        return self._digests | {key: tensor_digest(total) for key, total in self._sums.items()}


def _in_order(schedule: Schedule) -> Schedule:
    """One micro-batch through all stages of a schedule on one device, in actions of the schedule's kinds."""
    stages = range(schedule.stages)
    kinds = {action.kind for _, action in schedule}
    backwards = [ActionKind.BACKWARD]
    if ActionKind.WEIGHT_GRADIENT in kinds:
        backwards = [ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT]
    forwards = [Action(ActionKind.FORWARD, stage, 0) for stage in stages]
    actions = (*forwards, *(Action(kind, stage, 0) for stage in reversed(stages) for kind in backwards))
    return replace(
        schedule, microbatches=1, period=1, device_of=((0,) * schedule.stages,), pipes=(0,), actions=(actions,)
    )


def _trained(
    module: nn.Module, settings: StageSettings, batch: Samples, loss: torch.Tensor, gradients: Mapping[int, Digest]
) -> Outcome:
    dtype = _dtype(settings, module, loss)
    outcome = Outcome("in training mode", len(batch), {"the loss": tensor_digest(loss)}, dtype)
    for name, value in _named_with_kind(module, module.named_parameters()):
        if value.requires_grad:
            outcome.values[f"{GRADIENT}{name}"] = gradients.get(id(value))
    return _with_buffers(module, outcome)


def _evaluated(module: nn.Module, settings: StageSettings, batch: Samples, outputs: Any) -> Outcome:
    tensors = flat_tensors(outputs)
    outcome = Outcome("in evaluation mode", len(batch), {}, _dtype(settings, module, *tensors))
    for number, value in enumerate(tensors):
        outcome.values[f"output {number + 1}"] = tensor_digest(value)
    return _with_buffers(module, outcome)


def _with_buffers(module: nn.Module, outcome: Outcome) -> Outcome:
    """With the buffers after the call."""
    for name, value in _named_with_kind(module, module.named_buffers()):
        outcome.values[f"the buffer {name}"] = tensor_digest(value)
    return outcome


def _named_with_kind(
    module: nn.Module, named: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names of parameters or buffers with the classes of the modules that have them, for messages."""
    kinds = {path: type(part).__name__ for path, part in module.named_modules()}
    for name, value in named:
        yield f"{name} ({kinds.get(name.rpartition('.')[0], 'Module')})", value


def _dtype(settings: StageSettings, module: nn.Module, *tensors: torch.Tensor) -> torch.dtype:
    """The shortest floating type of the computation, which decides how far results may be apart."""
    if settings.precision is not None:
        return settings.precision
    values = [value for value in (*tensors, *module.parameters()) if value.is_floating_point()]
    return min((value.dtype for value in values), key=lambda dtype: dtype.itemsize, default=torch.float32)


def _tensors(stage: StageCopy) -> dict[str, torch.Tensor]:
    """The weights and buffers that a stage's evaluation computes with."""
    return {**stage.versions.parameters, **dict(stage.module.named_buffers())}


def autocast_of(settings: StageSettings) -> Any:
    return torch.autocast("cpu", settings.precision) if settings.precision is not None else nullcontext()


@contextmanager
def _failures_named(what: str) -> Iterator[None]:
    """Context that names what has failed: user code and operations of a graph may raise anything."""
    try:
        yield
    except TemporaryFileError:
        raise
    except Exception as error:
        raise TrainingError(f"{what}{place_and_reason(error)}") from error


def _plain_failure(mode: str, batch: Samples) -> str:
    return f"{mode}, the model fails on a micro-batch of {len(batch)} rows, which this run has"


def _staged_failure(mode: str, batch: Samples) -> str:
    return f"{mode}, the model runs on a micro-batch of {len(batch)} rows, and its stages fail"
