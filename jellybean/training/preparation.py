"""What a rank does before it is known how the run trains: it loads, checks and traces the model; rank 0 profiles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from jellybean.documents.training import AUTO, TrainingDocument
from jellybean.pipeline.torch_profile import ProfileTarget, TorchProfile, profile_traced
from jellybean.pipeline.torch_state import globals_kept, state_kept
from jellybean.training.choice.candidates import enumerate_candidates, has_one_stage, leaves_freedom
from jellybean.training.choice.decide import Predictor
from jellybean.training.choice.planned import PlannedStages
from jellybean.training.choice.profiles import SizedProfiles
from jellybean.training.choice.schedule_choice import ScheduleChoice, choose_schedule
from jellybean.training.data.agreement import check_same_rows
from jellybean.training.data.rows import RowDigest
from jellybean.training.errors import TrainingError
from jellybean.training.graphs import GraphRecipe, ModelGraphs, find_graphs, repeat_graphs
from jellybean.training.inputs import CheckedInputs, TrainingInputs, check_inputs, read_inputs
from jellybean.training.loss_trial import loss_named
from jellybean.training.microbatch_trials import MicrobatchTrials
from jellybean.training.models.agreement import check_same_model
from jellybean.training.models.rebuilding import check_own_memory, check_saved, constant_digests, needs_memory
from jellybean.training.processes.link_speed import LinkSpeed, measure_links, with_conversion
from jellybean.training.processes.ranks import Rank
from jellybean.training.stages.precision import PRECISIONS
from jellybean.training.tensor_parallel.profile import LayerParts

GPU_BYTES_PER_S = 1.25e9  # between GPUs, unless the document says more: 10 Gbit/s

_LEAST_ROWS = 2  # of a profiled micro-batch: batch norm trains on no single row


Report = Callable[[str], None]


@dataclass(frozen=True)
class PreparedRank:
    """A rank that has loaded, checked and traced its model. `choice`: None if candidates are to be searched.

    `predictor`: on rank 0 of such a search. `rebuilt_whole`: as of RankRun. `trials`: on rank 0.
    """

    document: TrainingDocument
    rank: Rank
    inputs: TrainingInputs
    graphs: ModelGraphs
    warning: str
    choice: ScheduleChoice | None
    predictor: Predictor | None
    rebuilt_whole: bool = False
    trials: MicrobatchTrials | None = None


@dataclass(frozen=True)
class _Decisions:
    """What rank 0 found out about the model, for all ranks."""

    checked: CheckedInputs
    recipes: tuple[GraphRecipe, GraphRecipe]
    choice: ScheduleChoice | None  # None: all ranks search it


def unreported(_: str) -> None:
    """Take a step of the preparation, for runs without a reader."""


def prepare_rank(document: TrainingDocument, directory: Path, rank: Rank, report: Report = unreported) -> PreparedRank:
    """Load, check and trace the model. A collective call: rank 0 checks and profiles it for all.

    `report`: what rank 0 calls with each step.
    """
    if not rank.is_first:
        report = unreported
    with rank.busy("loading the model and the data, and profiling"):
        report("building the model, and loading the data")
        inputs = read_inputs(document, directory)
        check_same_model(inputs.module, document.model_name)
        parts = {"train": inputs.data.train, "test": inputs.data.test}
        digests = [RowDigest(part, rows.digest()) for part, rows in parts.items()]
        link = _link_speed(document, rank)
        if document.compress == AUTO:
            link = with_conversion(link, rank.device)
        graphs: ModelGraphs | None = None
        decisions: list[_Decisions | None] = [None]
        predictor: Predictor | None = None
        rebuilt_whole, trials = False, None
        if rank.is_first:
            checked, rebuilt_whole = _try_model(inputs, document, directory, rank, report)
            trials = MicrobatchTrials(inputs, document, checked, rank.workers)
            example = inputs.example(document, checked.trial_rows).inputs
            free = leaves_freedom(document, dist.get_world_size())
            candidates = enumerate_candidates(document, dist.get_world_size())[0] if free else []
            splits = rank.tensor > 1 or any(one.tensor > 1 for one in candidates)
            report("tracing the model")
            with loss_named(checked.rules, document):
                graphs = find_graphs(inputs.module, example, split=splits, whole=has_one_stage(document))
            facts = graphs.recipes[0].facts
            states = inputs.optimizer.states_per_weight(inputs.module) + (document.ema is not None)
            choice: ScheduleChoice | None = None
            report("timing the model's layers")
            if free:
                sizes = [document.batch // (one.microbatches * one.replicas) for one in candidates]
                profiles = _profiles(sizes or [document.batch], document, inputs, graphs, rank)
                layer_parts = LayerParts(graphs.training, facts, document) if splits else None
                predictor = Predictor(document, profiles, states, link, layer_parts, trials.check)
            else:
                tensors = inputs.example(document).inputs.tensors
                choose = PlannedStages(directory) if document.plan or document.objective else choose_schedule
                choice = choose(graphs.training, facts, tensors, document, states, rank.device, link)
            decisions = [_Decisions(checked, graphs.recipes, choice)]
    dist.broadcast_object_list(decisions, src=0)
    decided = decisions[0]
    if decided is None:
        raise TrainingError("rank 0 sent no choice of a schedule")
    check_same_rows(digests, document.data_name, "before training")
    with rank.busy("tracing the model"):
        arguments = inputs.example(document, decided.checked.trial_rows).inputs
        graphs = graphs or repeat_graphs(inputs.module, arguments, decided.recipes)
    inputs = inputs.ruled(decided.checked.rules)
    return PreparedRank(
        document, rank, inputs, graphs, decided.checked.warning, decided.choice, predictor, rebuilt_whole, trials
    )


def _try_model(
    inputs: TrainingInputs, document: TrainingDocument, directory: Path, rank: Rank, report: Report
) -> tuple[CheckedInputs, bool]:
    """Try an update, and the end of the run: what was checked, and whether models are built with memory for weights."""
    constants = constant_digests(inputs.module)
    checked = check_inputs(inputs, document, directory, rank.workers)
    report("trying what comes at the end")
    return checked, _try_end(inputs, constants, document, directory)


def _try_end(inputs: TrainingInputs, constants: Mapping[str, str], document: TrainingDocument, directory: Path) -> bool:
    """Try what comes after the last epoch, as far as it depends on no trained weight: to hand back, save and export.

    `constants`: of the model before it ran. Returns whether the model is built with memory for its weights then.
    """
    check_own_memory(inputs.module)
    check_saved(inputs.module)
    if document.export is not None:
        from jellybean.training.export import EXPORT_ROWS, served_arguments, try_export  # onnxruntime takes a second

        rows = served_arguments(inputs.data.test.example(EXPORT_ROWS).inputs, document.loss.function)
        try_export(inputs.module, document.export, directory, rows)
    weight_bytes = sum(value.nbytes for value in inputs.module.parameters())
    with globals_kept(), state_kept(inputs.module):
        return needs_memory(constants, document, directory, weight_bytes)


def _profiles(
    sizes: Sequence[int], document: TrainingDocument, inputs: TrainingInputs, graphs: ModelGraphs, rank: Rank
) -> SizedProfiles:
    """Profiles of the smallest and the largest micro-batch among these sizes."""
    target = ProfileTarget(rank.device, PRECISIONS[document.precision].computation)

    def measure(size: int) -> TorchProfile:
        tensors = inputs.data.train.example(size).inputs.tensors
        return profile_traced(graphs.training, graphs.recipes[0].facts, tensors, runs=3, target=target)

    return SizedProfiles.measured([max(_LEAST_ROWS, size) for size in sizes], measure)


def _link_speed(document: TrainingDocument, rank: Rank) -> LinkSpeed:
    """The document's bandwidth, or what is measured between CPU processes. A collective call.

    Links between GPUs are not measured yet.
    """
    if document.bandwidth_bytes_per_s is not None:
        return LinkSpeed(document.bandwidth_bytes_per_s)
    alone = document.devices == 1 and not leaves_freedom(document, dist.get_world_size())
    if rank.device.type != "cpu" or alone:
        return LinkSpeed(GPU_BYTES_PER_S)
    return measure_links(rank)
