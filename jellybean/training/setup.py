"""Sets up one rank of a run: model, cuts, schedule, stages, transport, updates."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.documents.training.run import TORCH
from jellybean.pipeline.torch_devices import move_module
from jellybean.training.called_modules import CutGraphs, calling_modules
from jellybean.training.checkpoints.frozen import FrozenWeights
from jellybean.training.checkpoints.tied_names import TiedNames, tied_names
from jellybean.training.choice.decide import Decision, decide
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.choice.trial import TrialRun
from jellybean.training.compared_runs import LEAST_CALLS, ComparedRows, ComparedStages, rows_of_sizes, sizes_of
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.loading import TrainingData
from jellybean.training.data.rows import MemoryRows, ReadPlan
from jellybean.training.data.sampler import MicrobatchSampler, TestSampler
from jellybean.training.errors import TrainingError, refusals
from jellybean.training.graphs import GraphRecipe, ModelGraphs, repeat_graphs
from jellybean.training.inputs import TrainingInputs
from jellybean.training.metrics import Measures
from jellybean.training.model_comparison import compare_update
from jellybean.training.optimization.optimizers import OptimizerPlan
from jellybean.training.preparation import PreparedRank, Report, prepare_rank, unreported
from jellybean.training.processes.host_memory import return_freed_memory
from jellybean.training.processes.ranks import NO_TIMEOUT, Rank, keep_first_ranks
from jellybean.training.processes.threads import threads_of
from jellybean.training.processes.transport import StageTransport
from jellybean.training.stages.all_reduce import ProcessGroups, TiedWeights, make_process_groups
from jellybean.training.stages.averages import AveragedWeights
from jellybean.training.stages.cut import CutModule, cut_module
from jellybean.training.stages.evaluation_cut import EvaluationCut
from jellybean.training.stages.evaluation_pass import EvaluationPass, EvaluationStage
from jellybean.training.stages.gradient_sums import GradientSums
from jellybean.training.stages.interpreter import ActionLog, Interpreter, Place
from jellybean.training.stages.master_weights import MasterWeights
from jellybean.training.stages.precision import PRECISIONS
from jellybean.training.stages.stage import LossFunction, StageCopy, StageSettings
from jellybean.training.stages.stage_transport import start_transport
from jellybean.training.stages.updates import UpdateSettings, WeightUpdates, check_tied_weights
from jellybean.training.stages.whole import whole_stage
from jellybean.training.tensor_parallel.stages import (
    SplitLayers,
    SplitStages,
    StageCopies,
    split_copies,
    split_stages,
)
from jellybean.training.tensor_parallel.sums import make_sums
from jellybean_solver.pipeline import STEADY_ROUNDS, Schedule

_OTHER_MODEL = (
    ". The stages would train another model: a graph drops hooks, branches on sizes and values, regions of autocast "
    "and no_grad, and what Python counts. Set devices: 1, which trains the model itself, move this into a submodule "
    "that fits into one stage, or give the model as `stages`"
)


class ResultForm(Protocol):
    """How the tensors that a model returns nest in its result."""

    def nest(self, tensors: Sequence[Any]) -> Any:
        """The result with these tensors."""


@dataclass(frozen=True)
class RankRun:
    """Everything that one rank needs for a run. No rank keeps the whole model.

    `result`: how the tensors of the last stage nest in what the model returns in evaluation mode. `untrained`: on rank
    0, parameters and buffers by name that no stage has. `split`: its parts of layers. `document`: with what was chosen.
    `tied_names`: all names of tensors that have several in the model.
    `rebuilt_whole`: on rank 0, whether the model must be built with memory for its weights to be handed back.
    `warning`: about the model and its data, `note`: why these processes and this schedule; or empty.
    """

    rank: Rank
    document: TrainingDocument
    data: TrainingData
    loss: LossFunction
    metrics: Measures
    optimizer: OptimizerPlan
    choice: ScheduleChoice
    schedule: Schedule
    sampler: MicrobatchSampler
    held: dict[tuple[int, int], StageCopy]
    updates: WeightUpdates
    transport: StageTransport
    interpreter: Interpreter
    evaluation: EvaluationPass
    result: ResultForm
    untrained: dict[str, torch.Tensor]
    copies: dict[int, dist.ProcessGroup | None]
    frozen: FrozenWeights
    split: SplitLayers
    tied_names: TiedNames
    rebuilt_whole: bool = False
    warning: str = ""
    note: str = ""


def set_up_run(document: TrainingDocument, directory: Path, rank: Rank) -> RankRun:
    """Set up this rank, as `set_up_rank`, for a document whose number of processes is given."""
    run = set_up_rank(document, directory, rank)
    if run is None:
        raise TrainingError(f"rank {rank.rank} is not needed: fewer processes are faster")
    return run


def set_up_rank(document: TrainingDocument, directory: Path, rank: Rank, report: Report = unreported) -> RankRun | None:
    """Set up this rank; None if `parallel: auto` uses fewer processes, without it. A collective call.

    `report`: what the first rank calls with each step that takes seconds. UntrainableError if the document, the model
    or the data must be changed.
    """
    with refusals():
        prepared = prepare_rank(document, directory, rank, report)
        if prepared.predictor is not None:
            report(f"trying schedules on up to {dist.get_world_size()} processes")
        with rank.busy("choosing a schedule, and reading the model's weights"):
            run = chosen_run(prepared, report)
        del prepared
    gc.collect()  # graphs are in reference cycles, and hold the whole model
    return_freed_memory()
    return run


def chosen_run(prepared: PreparedRank, report: Report = unreported) -> RankRun | None:
    """The run of the document's choice, or of the fastest candidate; None if it does not use this rank."""
    if prepared.choice is not None:
        return run_of(prepared, prepared.document, prepared.rank, prepared.choice)
    decision = decide_on_ranks(prepared, report)
    kept = keep_first_ranks(prepared.rank, decision.document)
    if kept is None:
        return None
    _use_threads(decision.document.ranks)
    return replace(run_of(prepared, decision.document, kept, decision.choice), note=decision.note)


def decide_on_ranks(prepared: PreparedRank, report: Report = unreported) -> Decision:
    """Search the fastest candidate. A collective call."""
    return decide(prepared.document, prepared.rank, prepared.predictor, partial(trial_of, prepared), report)


def run_of(prepared: PreparedRank, document: TrainingDocument, rank: Rank, choice: ScheduleChoice) -> RankRun:
    """This rank's run of a choice. A collective call of all ranks of the document."""
    if prepared.trials is not None:
        prepared.trials.check(document, choice)
    run = _RunBuilder(document, rank, prepared.inputs, choice, prepared.graphs).build()
    kept = prepared.trials.note if prepared.trials is not None else ""
    warning = "; ".join(filter(None, (prepared.warning, kept, run.warning)))
    return replace(run, warning=warning, rebuilt_whole=prepared.rebuilt_whole)


def trial_of(prepared: PreparedRank, document: TrainingDocument, choice: ScheduleChoice) -> TrialRun:
    """A candidate's trial on the first rows, which stay in memory. A collective call, also of unused ranks."""
    rows = document.batch
    if choice.period is not None:
        rows = rows // document.microbatches * STEADY_ROUNDS * document.devices
    data = prepared.inputs.data
    first = MemoryRows(data.train.example(rows), "train", document.seed)
    inputs = replace(prepared.inputs, data=replace(data, train=first))
    return _RunBuilder(document, prepared.rank.placed(document), inputs, choice, prepared.graphs).trial()


@dataclass(frozen=True)
class _TrainingParts:
    """What runs training iterations on this rank."""

    held: dict[tuple[int, int], StageCopy]
    updates: WeightUpdates
    transport: StageTransport
    interpreter: Interpreter
    groups: ProcessGroups


class _RunBuilder:
    """Makes a rank's run from the model's graphs and the choice of a schedule."""

    def __init__(
        self,
        document: TrainingDocument,
        rank: Rank,
        inputs: TrainingInputs,
        choice: ScheduleChoice,
        graphs: ModelGraphs,
    ) -> None:
        self._document, self._rank, self._inputs, self._choice, self._graphs = document, rank, inputs, choice, graphs
        self._sampler = _sampler(document, inputs, choice)
        self._schedule = choice.schedule(document.devices, self._sampler.run)
        self._precision = PRECISIONS[document.precision]

    def build(self) -> RankRun:
        """A collective call: process groups are made."""
        document, rank, schedule, choice = self._document, self._rank, self._schedule, self._choice
        direct = schedule.edges is not None
        if self._is_whole:
            training, evaluation = self._whole()
        else:
            cut = self._cut_graphs(direct=direct)
            self._graphs = cut.graphs
            training, evaluation = cut.cut(direct=direct)
        results = self._results(training, evaluation.stages)
        warning = self._compare_update(training, evaluation, results) if rank.rank == 0 else ""
        groups, untrained = self._process_groups(training), self._untrained(training)
        self._read_weights(training)
        own = [number for number, _ in schedule.copies_on(rank.device_index)]
        stages = split_stages(SplitStages(training, evaluation), self._graphs, document, rank, groups.tensor, own)
        split = stages.split
        parts = self._parts(stages.training, frozenset(split.weights.names), groups)
        return RankRun(
            rank=rank,
            document=document,
            data=self._inputs.data,
            loss=self._inputs.loss,
            metrics=self._inputs.metrics,
            optimizer=self._inputs.optimizer,
            choice=choice,
            schedule=schedule,
            sampler=self._sampler,
            held=parts.held,
            updates=parts.updates,
            transport=parts.transport,
            interpreter=parts.interpreter,
            evaluation=self._evaluation(stages.evaluation, parts.transport),
            result=results[1],
            untrained=untrained,
            copies=dict(parts.groups.copies),
            frozen=FrozenWeights(parts.held, split.weights.frozen),
            split=split,
            tied_names=tied_names(self._inputs.module),
            warning=warning,
        )

    def _cut_graphs(self, *, direct: bool) -> CutGraphs:
        """The graphs that the stages are cut from, in which modules within a stage are called. A collective call."""
        cut, module = CutGraphs(self._graphs, self._choice.stage_of), self._inputs.module
        if self._rank.tensor > 1:
            return cut
        called: CutGraphs | None = None
        decided: list[tuple[tuple[GraphRecipe, GraphRecipe], Mapping[str, int]] | None] = [None]
        if self._rank.rank == 0:
            called = calling_modules(module, cut, direct=direct)
            decided = [(called.graphs.recipes, called.stage_of) if called is not None else None]
        dist.broadcast_object_list(decided, src=0)
        if decided[0] is None or called is not None:
            return called or cut
        recipes, stage_of = decided[0]
        return CutGraphs(repeat_graphs(module, self._graphs.example, recipes), stage_of)

    def trial(self) -> TrialRun:
        """Iterations on copies of this rank's stages. A collective call, also of ranks that are not used."""
        rank, schedule = self._rank, self._schedule
        if self._is_whole:
            cut = self._whole()[0]
        else:
            cut = cut_module(self._graphs.training, self._graphs.recipes[0].facts, self._choice.stage_of)
        groups = self._process_groups(cut)
        if rank.rank >= self._document.ranks:
            return TrialRun(schedule, 0, 0, None, groups.destroy)
        copies = StageCopies.of(cut, (number for number, _ in schedule.copies_on(rank.device_index)))
        self._read_weights(copies.cut)
        parts = self._parts(*split_copies(copies, self._graphs, self._document, rank, groups.tensor), groups)
        reader = self._inputs.data.train.read(ReadPlan(self._sampler, replica=rank.replica))
        feed = IterationFeed(reader, 0, rank.device, 0, rank.replica, self._document.seed)

        def close() -> None:
            parts.transport.close()
            parts.groups.destroy()

        def run() -> ActionLog:
            _use_threads(self._document.ranks)
            return parts.interpreter.run(feed)

        return TrialRun(schedule, rank.device_index, rank.pipeline, run, close)

    def _parts(self, cut: CutModule, split: frozenset[str], groups: ProcessGroups) -> _TrainingParts:
        """`split`: names of weights of which the stages have parts."""
        document, rank, schedule = self._document, self._rank, self._schedule
        sums = self._sums(groups, cut.tied, split)
        groups = replace(groups, copies=groups.workers) if rank.by_rows else groups
        rules = UpdateSettings(
            schedule.flushes,
            cut.tied,
            document.clip,
            rank.replica == 0,
            self._precision.loss_scale(),
            rank.tensor,
            split,
        )
        held = self._held(cut)
        updates = WeightUpdates(
            held,
            self._inputs.optimizer.make,
            groups,
            rules,
            AveragedWeights(held, document.ema) if document.ema is not None else None,
            sums,
        )
        compress = self._choice.compress if document.compress == AUTO else document.compress
        transport = start_transport(rank, schedule, document.replicas, groups.messages, compress)
        place = Place(rank.device_index, rank.first, rank.streams, rank.tensor)
        interpreter = Interpreter(schedule, held, transport, updates, place, rank.step)
        return _TrainingParts(held, updates, transport, interpreter, groups)

    def _process_groups(self, cut: CutModule) -> ProcessGroups:
        """A collective call, also of ranks that the document does not use."""
        check_tied_weights(self._schedule, cut.tied)
        groups = make_process_groups(self._schedule, self._document.replicas, cut.tied, tensor=self._rank.tensor)
        return replace(groups, messages=dist.new_group(backend="gloo", timeout=NO_TIMEOUT))

    def _sums(self, groups: ProcessGroups, tied: TiedWeights, split: frozenset[str]) -> GradientSums:
        """How this rank sums gradients. A collective call: messages in host memory may need groups of their own."""
        sync, rank = self._document.sync, self._rank
        if sync.way != TORCH and dist.get_backend() != "gloo":
            groups = make_process_groups(self._schedule, self._document.replicas, tied, "gloo", rank.tensor)
        return make_sums(sync, groups, split, by_rows=rank.by_rows)

    def _held(self, cut: CutModule) -> dict[tuple[int, int], StageCopy]:
        short = self._precision.weights
        settings = self._settings(MasterWeights(short) if short is not None else None)
        result, loss, last = self._results(cut)[0], self._inputs.loss, self._schedule.stages - 1

        def loss_of(tensors: Any, target: Any) -> torch.Tensor:
            return loss(result.nest(tensors), target)

        return {
            (number, pipe): cut.stages[number].copy(settings, loss_of if number == last else None, self._rank.device)
            for number, pipe in self._schedule.copies_on(self._rank.device_index)
        }

    @property
    def _is_whole(self) -> bool:
        """Whether the only stage is the module itself, and no layer is split."""
        return self._schedule.stages == 1 and self._rank.tensor == 1

    def _whole(self) -> tuple[CutModule, EvaluationCut]:
        return whole_stage(self._inputs.module, self._graphs.training.arguments, self._graphs.recipes[0].facts.state)

    def _results(self, training: CutModule, evaluation: CutModule | None = None) -> tuple[ResultForm, ResultForm]:
        """How the tensors that the last stage returns nest in the model's result, in training and in evaluation."""
        if not self._is_whole:
            return self._graphs.training.result, self._graphs.evaluation.result
        whole = [cut.stages[0].module for cut in (training, evaluation or training)]
        return whole[0], whole[1]

    def _settings(self, masters: MasterWeights | None = None) -> StageSettings:
        precision, versions = self._precision.computation, not self._schedule.flushes
        return StageSettings(precision, self._document.recompute, masters, versions)

    def _compare_update(
        self, training: CutModule, evaluation: EvaluationCut, results: tuple[ResultForm, ResultForm]
    ) -> str:
        """What the user must know of the model, or empty. On rank 0, which has all of it.

        TrainingError if the stages compute something else than the module.
        """
        train, test = self._inputs.data.train, self._inputs.data.test
        test_sizes = sizes_of(TestSampler(test.rows, max(1, self._sampler.size), 1))
        rows = ComparedRows(
            rows_of_sizes(train.example, sizes_of(self._sampler), LEAST_CALLS),
            rows_of_sizes(test.example, test_sizes),
        )
        nests = results[0].nest, results[1].nest
        settings = self._settings()
        if self._rank.device.type != "cpu" and settings.precision is torch.float16:
            settings = replace(settings, precision=torch.bfloat16)  # few operations of the CPU have float16
        stages = ComparedStages(
            training,
            evaluation,
            nests,
            self._inputs.loss,
            settings,
            self._schedule,
            self._graphs.training.graph,
            self._document.replicas * self._rank.workers * len(self._schedule.device_of),
        )
        compared = compare_update(self._inputs.module, stages, rows)
        if compared.difference:
            advice = "" if self._is_whole else _OTHER_MODEL
            raise TrainingError(f"{self._document.model_name}: {compared.difference}{advice}")
        return compared.note

    def _read_weights(self, cut: CutModule) -> None:
        """Read the pretrained weights of this rank's stages. Rank 0 has read all of them to check the model."""
        pretrained = self._inputs.pretrained
        if pretrained is None or self._rank.is_first:
            return
        own = {number for number, _ in self._schedule.copies_on(self._rank.device_index)}
        for number in sorted(own):
            module = cut.stages[number].module
            pretrained.fill((*module.parameters(), *module.buffers()))

    def _untrained(self, cut: CutModule) -> dict[str, torch.Tensor]:
        if not self._rank.is_first:
            return {}
        staged = {id(value) for stage in cut.stages for value in stage.module.parameters()}
        module = self._inputs.module
        buffers = {name: value for name, value in module.named_buffers() if name in module.state_dict()}
        return {name: value.data for name, value in module.named_parameters() if id(value) not in staged} | buffers

    def _evaluation(self, cut: EvaluationCut, transport: StageTransport) -> EvaluationPass:
        rank, places, computation = self._rank, self._schedule.device_of[0], self._precision.computation
        stages = {
            number: EvaluationStage(
                move_module(stage.module, rank.device), stage.inputs.arguments, cut.names[number], computation
            )
            for number, stage in enumerate(cut.stages.stages)
            if places[number] == rank.device_index
        }
        return EvaluationPass(
            stages,
            places,
            transport,
            device=rank.device_index,
            first_rank=rank.first,
            rank_step=rank.tensor,
            step=rank.step,
        )


def _sampler(document: TrainingDocument, inputs: TrainingInputs, choice: ScheduleChoice) -> MicrobatchSampler:
    sampler = MicrobatchSampler(
        inputs.data.train.rows,
        document.batch,
        document.microbatches,
        document.workers,
        choice.period,
    )
    if sampler.updates < 1:
        parts = document.microbatches * document.workers
        raise TrainingError(
            f"{sampler.samples} row{'s are' if sampler.samples > 1 else ' is'} too few for an update of {choice.name}, "
            f"which takes {parts} micro-batches of {max(1, sampler.size)}; lower batch or microbatches"
        )
    return sampler


def _use_threads(processes: int) -> None:
    """Compute with the threads that each of so many processes may have."""
    threads = threads_of(processes)
    if threads is not None and threads != torch.get_num_threads():
        torch.set_num_threads(threads)
