"""Profiles a project: measures what is missing or stale in its profiles, and writes profiles.yaml."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from jellybean.bench.hop import ROUNDS, HopTime, measure_hop
from jellybean.display import formats
from jellybean.documents import ProfilesDocument, Project, read_profiles
from jellybean.documents.figure_notes import ratio_notes
from jellybean.documents.flow import follow_requests
from jellybean.documents.provenance.changes import Part
from jellybean.documents.provenance.noise import NOISY_HOP
from jellybean.profiler import accuracy
from jellybean.profiler.cache import Cache, key_of, key_of_device
from jellybean.profiler.cuts import LAYERS_S, CutModels, allowed_cuts, cut_models
from jellybean.profiler.document import (
    Findings,
    ProfilesMerge,
    by_hand_marked,
    merged_profiles,
    noise_notes,
    stage_types,
)
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.latency import BLOCKS, BatchDifference, Latency, LatencyMeter, Point
from jellybean.profiler.measurement_plan import (
    MeasurementPlan,
    Scope,
    content_of,
    left_out_variants,
    require_types,
    todo_of,
)
from jellybean.profiler.memory import model_memory
from jellybean.profiler.profiles_file import PROFILES_FILE, ProfilesFile
from jellybean.profiler.project import devices_of, require_devices, speeds_of, workload_of
from jellybean.profiler.remote.measure import measure_on_workers
from jellybean.profiler.remote.rows import Rows
from jellybean.profiler.remote.worker_agent import WorkerAgent
from jellybean.profiler.remote.worker_part import WorkerPart
from jellybean.profiler.survey import Survey, survey
from jellybean.profiler.workload import Model, Workload
from jellybean_agent import CPU, Device, ModelMemory, batched, installed_version
from jellybean_solver import EdgeKind, OutOfTimeError, work_limit

Progress = Callable[[float, float, str], None]

SECONDS_PER_POINT = 1.0
BATCH_SIZES = (1, 4)
_SURVEY_S, _HOP_S, _MEMORY_S, _ACCURACY_S = 3.0, 8.0, 0.6, 4.0  # first estimates, for the progress bar only


@dataclass(frozen=True)
class Profiled:
    """The profiles that were written, notes for the user on how precise they are, and what was measured and why."""

    document: ProfilesDocument
    notes: tuple[str, ...]
    todo: MeasurementPlan
    written: bool = True  # False: the file was complete and current

    def to_dict(self) -> dict[str, Any]:
        """What was measured and kept as JSON values."""
        return {"written": self.written, "notes": list(self.notes), **self.todo.to_dict()}


@dataclass
class _ProgressClock:
    """Progress in seconds: done so far and expected in total."""

    report: Progress
    done_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)  # part of the profile -> expected seconds left

    def now(self, part: str, left_s: float, label: str) -> None:
        """Report the start of a measurement (`label`) and the expected seconds left in its part of the profile.

        OutOfTimeError at the time limit of the work, with what is not measured.
        """
        self.parts[part] = left_s
        if work_limit().left() == 0.0:
            raise OutOfTimeError(self._missing(label))
        self.report(self.done_s, self.done_s + sum(self.parts.values()), label)

    def _missing(self, label: str) -> str:
        expected = (f"{part} (about {max(1.0, left_s):.0f} s)" for part, left_s in self.parts.items() if left_s > 0)
        return f"the time limit ended the measurements at {label}; not measured: {', '.join(expected)}"

    def spent(self, part: str, seconds: float) -> None:
        """Move `seconds` of a part from left to done."""
        self.done_s += seconds
        self.parts[part] = max(0.0, self.parts[part] - seconds)


def profile(
    project: Project,
    *,
    progress: Progress = lambda done, total, label: None,
    seconds_per_point: float = SECONDS_PER_POINT,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    scope: Scope = Scope(),
    allow_python: frozenset[str] = frozenset(),
    workers: Sequence[WorkerAgent] = (),
) -> Profiled:
    """Measure what is missing or stale in the project's profiles, and write profiles.yaml into its folder.

    Finished measurements are cached in the folder: after an interruption the next call resumes. `progress` gets seconds
    done, expected total seconds, and the current measurement. `allow_python`: Python functions that may run here in
    addition to the built-in steps. `workers`: measure their types' rows, in parallel; the file is written again with
    each row. ProfileError if a model fails, data is missing or a worker is lost; DocumentError if a worker type has to
    be measured that is not this machine's. At the time limit of the work an OutOfTimeError says what is not measured.
    """
    scope = scope_on(workers, scope)
    settings = (progress, seconds_per_point, batch_sizes, scope, allow_python, workers)
    parts = [_profile_part(one, *settings) for one in (project, *project.alternatives)]
    document = parts[-1].document if not project.alternatives else read_profiles(project.directory)
    if document is None:
        raise ProfileError(f"{project.directory / PROFILES_FILE} was removed while it was written")
    return Profiled(
        document,
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        parts[0].todo.with_more([part.todo for part in parts[1:]]),
        written=any(part.written for part in parts),
    )


def _profile_part(
    project: Project,
    progress: Progress,
    seconds_per_point: float,
    batch_sizes: Sequence[int],
    scope: Scope,
    allow_python: frozenset[str],
    workers: Sequence[WorkerAgent],
) -> Profiled:
    """As `profile`, of the workflow without cascades, or of what one cascade adds to it."""
    file = ProfilesFile(project)
    known = file.read(fresh=scope.fresh)
    todo = _measurements(project, known, scope, batch_sizes)
    if not todo.measure and known is not None:
        document = file.with_cascades(by_hand_marked(known)) if project.cascade is None else known
        if document != known:
            file.write(document)
        told = (*_ratio_notes(project, document), *_never_measured(project, known, scope))
        return Profiled(document, told, todo, written=document != known)
    types_here = todo.here - scope.machines.keys()
    require_devices(project, todo.of_types(types_here))
    cache = Cache.open(project.directory, resume=not scope.fresh)
    run = _Run(project, todo, cache, progress, allow_python, types_here)
    try:
        findings = run.measure(known, seconds_per_point, {1, *batch_sizes})
    except ProfileError as error:
        if (cascade := project.cascade) is None:
            raise
        name = f"{cascade.operator} {cascade.variant} ({cascade.spec.when})"
        raise ProfileError(f"the cascade {name}: {error}") from error
    notes = [*_notes(findings), *run.batch_notes]
    merge = ProfilesMerge(findings, known, todo, content_of(project), allowed_cuts(project), {1, *batch_sizes}, 1)
    merge = replace(merge, left_out=left_out_variants(project, known), taken=file.runs())
    if workers:
        document, more_notes = _measured_on(workers, merge, run, seconds_per_point, file)
        notes += more_notes
    else:
        document = merged_profiles(merge)
        file.write(document)
    notes += _removed_notes(known, document)
    return Profiled(document, (*_ratio_notes(project, document), *notes), todo)


def scope_on(workers: Sequence[WorkerAgent], scope: Scope = Scope()) -> Scope:
    """A scope with the workers' types, and the machines that measure them."""
    machines = {agent.worker.worker_type: agent.machine for agent in workers}
    return replace(scope, types=(*scope.types, *machines), machines=machines) if machines else scope


def _measured_on(
    workers: Sequence[WorkerAgent], merge: ProfilesMerge, run: _Run, seconds_per_point: float, file: ProfilesFile
) -> tuple[ProfilesDocument, list[str]]:
    """The profiles with the workers' rows, and notes. WorkersError, with all rows kept, if one did not finish."""
    found = merge.findings
    trial = LatencyMeter(found.workload, found.survey, run.cache, seconds_per_point)
    parts: dict[str, WorkerPart] = {}
    for agent in workers:
        name = agent.worker.worker_type
        points = _points(trial, found.cut_models, merge.todo.of_types({name}), merge.known, merge.batch_sizes)
        cache = run.cache.measured_on(f"{agent.worker.name} {agent.machine!r}")
        meter = LatencyMeter(found.workload, found.survey, cache, seconds_per_point)
        parts[name] = WorkerPart(agent, found.workload, found.survey.inputs, points, meter, cache)
    rows = Rows(merge, parts, file.write)
    clock = run.clock
    clock.parts["workers"] = sum(part.expected_s for part in parts.values())

    def report(seconds: float, label: str) -> None:
        clock.spent("workers", seconds)
        clock.now("workers", clock.parts["workers"], label)

    run.compare_batches(trial, [point for part in parts.values() for point in part.points])
    measure_on_workers(parts, rows, report)
    document = rows.document()
    file.write(document)
    return document, [note for name, part in parts.items() for note in _worker_notes(name, part)]


def _worker_notes(worker_type: str, part: WorkerPart) -> Iterator[str]:
    """Notes on how precise a worker's measurements are."""
    name = part.agent.worker.name
    devices = {worker_type: part.workload.device_of(worker_type)}
    yield from (f"{name}: {note}" for note in noise_notes(part.latency, {worker_type: 1.0}, devices))
    if part.served:
        yield f"{name} ran {part.served} requests while it was measured, which makes its times longer"


def measurements(project: Project, scope: Scope = Scope(), batch_sizes: Sequence[int] = BATCH_SIZES) -> MeasurementPlan:
    """What `profile` would measure and keep; arguments and DocumentError as there."""
    plain, *others = (
        _measurements(one, ProfilesFile(one).read(fresh=scope.fresh), scope, batch_sizes)
        for one in (project, *project.alternatives)
    )
    return plain.with_more(others)


def _measurements(
    project: Project, known: ProfilesDocument | None, scope: Scope, batch_sizes: Sequence[int]
) -> MeasurementPlan:
    require_types(project, scope.types)
    speeds_of(project)
    devices_of(project)
    return todo_of(project, known, scope, {1, *batch_sizes})


def _never_measured(project: Project, known: ProfilesDocument, scope: Scope) -> Iterator[str]:
    """A note on a cascade of which `--merge` measures nothing, as rows of one type would be all that is known of it."""
    cascade = project.cascade
    if cascade is not None and scope.rows_only and cascade.unsure not in known.operators:
        yield f"{cascade.operator} {cascade.variant}, a cascade, was never measured: run profile without --merge first"


def _ratio_notes(project: Project, document: ProfilesDocument) -> Iterator[str]:
    """Notes on ratios of the workflow that are not those of the profiles."""
    edges = follow_requests(project.workflow, project.infrastructure.sites).edges
    return ratio_notes(project.workflow, edges, document)


def _removed_notes(known: ProfilesDocument | None, document: ProfilesDocument) -> Iterator[str]:
    """A note on the variants whose profiles were removed."""
    before = known.operators.items() if known is not None else ()
    names = [
        f"{operator} {variant}"
        for operator, variants in before
        for variant in variants
        if variant not in document.operators.get(operator, {})
    ]
    if names:
        yield f"removed the profiles of {', '.join(names)}: not in workflow.yaml"


def _notes(findings: Findings) -> Iterator[str]:
    """Notes on how precise the measurements are."""
    yield from noise_notes(findings.latency, findings.workload.speeds, findings.workload.devices)
    yield from findings.cut_models.notes
    if findings.hop is not None and findings.hop.noise > NOISY_HOP:
        yield (
            f"hop {formats.duration(findings.hop.seconds)}: rounds differed by {formats.percent(findings.hop.noise)}, "
            "so the machine was busy; the next `jellybean profile` measures it again"
        )
    if isinstance(findings.accuracy, dict):
        yield (
            f"{accuracy.selection_count(findings.workload)} selections are too many to measure each "
            f"({accuracy.LIMIT} at most): accuracy was measured around the best selection found and is taken as "
            "independent per operator"
        )


class _Run:
    """One run: measures the entries of `todo`."""

    def __init__(
        self,
        project: Project,
        todo: MeasurementPlan,
        cache: Cache,
        progress: Progress,
        allow_python: frozenset[str],
        types: Collection[str],
    ) -> None:
        """`types`: worker types whose rows are measured on this machine."""
        self.project, self.todo, self.cache, self.todo_here = project, todo, cache, todo.of_types(types)
        self.workload = workload_of(project, allow_python)
        self.flow = Flow(self.workload)
        self.clock = _ProgressClock(progress)
        self.batch_notes: list[str] = []

    def measure(
        self, known: ProfilesDocument | None, seconds_per_point: float, batch_sizes: Collection[int]
    ) -> Findings:
        """Measure; `known`: the existing profiles, whose cuts are kept where they are chosen again."""
        parts = {entry.part for entry in self.todo.measure}
        runs_models = bool(parts & {Part.LATENCY, Part.OUTPUTS, Part.CUTS})
        clock = self.clock
        clock.parts |= self._expected_s(parts)
        found = self._survey() if runs_models else Survey({}, {}, {}, {})
        clock.now("cuts", clock.parts["cuts"], "where models can be cut")
        cuts = cut_models(self.project, self.workload, found, self.cache, self.todo.variants(Part.CUTS))
        clock.spent("cuts", clock.parts["cuts"])
        meter = LatencyMeter(cuts.workload, cuts.survey, self.cache, seconds_per_point)
        points = _points(meter, cuts, self.todo_here, known, batch_sizes)
        latency = _latency(meter, points, clock)
        self.compare_batches(meter, points)
        memory = _memory(cuts.workload, cuts.survey, points, self.cache, clock)
        hop = self._hop() if Part.HOP in parts else None
        measured = _accuracy(self.workload, self.flow, self.cache, clock) if Part.ACCURACY in parts else None
        return Findings(cuts.workload, cuts.survey, latency, memory, hop, measured, cuts)

    def compare_batches(self, meter: LatencyMeter, points: Sequence[Point]) -> None:
        """Note the variants whose outputs depend on the batch, where plans may batch them."""
        smallest: dict[Model, Point] = {}
        for point in sorted((point for point in points if point.batch > 1), key=lambda point: point.batch):
            operator = self.project.workflow.operators.get(point.model.operator)  # None: a stage of a cut model
            if operator is not None and (operator.batch or self.project.infrastructure.limits.batch) > 1:
                smallest.setdefault(point.model, replace(point, device=CPU))
        for model, point in smallest.items():
            self.clock.now("batches", 0.0, f"answers of {model.operator} {model.variant} in batches")
            if (found := meter.batch_difference(point)) is not None:
                self.batch_notes.append(batch_note(model, found))
        self.batch_notes += [mixed_note(model, found) for model, found in meter.mixed.items()]

    def _expected_s(self, parts: Collection[Part]) -> dict[str, float]:
        models = {(e.operator, e.variant) for e in self.todo_here.measure if e.part in {Part.LATENCY, Part.CUTS}}
        return {
            "survey": _SURVEY_S if set(parts) - {Part.HOP, Part.ACCURACY} else 0.0,
            "hop": _HOP_S if Part.HOP in parts else 0.0,
            "memory": _MEMORY_S * len(models),
            "accuracy": _ACCURACY_S if Part.ACCURACY in parts else 0.0,
            "cuts": LAYERS_S * len(self.todo.variants(Part.CUTS)),
        }

    def _hop(self) -> HopTime:
        self.clock.now("hop", _HOP_S, "time between two agents")
        hop = measured_hop(self.cache)
        self.clock.spent("hop", _HOP_S)
        return hop

    def _survey(self) -> Survey:
        self.clock.now("survey", _SURVEY_S, "messages on the edges")
        found = survey(self.workload, self.flow)
        self.clock.spent("survey", _SURVEY_S)
        return found


def batch_note(model: Model, found: BatchDifference) -> str:
    """A warning about a variant whose outputs depend on the other requests of a batch."""
    return (
        f"{model.operator} {model.variant} answers a request differently in a batch: of {found.batch} requests, "
        f"outputs differ by up to {found.difference:.3g} (largest value: {found.largest_value:.3g}) from those "
        f"of the same requests alone, so answers depend on the load; write `operators.{model.operator}.batch: 1` into "
        "workflow.yaml, or export a model whose rows do not depend on each other (for example static quantization)"
    )


def mixed_note(model: Model, found: BatchDifference) -> str:
    """A warning about a variant that computes over the rows of a batch, of which none was measured."""
    return (
        f"{model.operator} {model.variant} is measured, planned and served one request at a time, as it mixes the "
        f"requests of a batch: of {found.batch} requests, outputs differ by up to {found.difference:.3g} (largest "
        f"value: {found.largest_value:.3g}) from those of the same requests alone; if the first dimension is time, "
        "export it with the batch first (torch: batch_first=True)"
    )


def _points(
    meter: LatencyMeter,
    cuts: CutModels,
    todo: MeasurementPlan,
    known: ProfilesDocument | None,
    batch_sizes: Collection[int],
) -> list[Point]:
    """All points to measure. Only models that accept batches, and tell rows apart by request, get batches."""
    workload = cuts.workload
    cut_of = {stage.name: cut for cut in cuts.cuts for stage in cut.steps}
    splits = {edge.upstream for edge in workload.edges if edge.kind is EdgeKind.FAN_OUT}
    points = []
    for step in (*workload.steps, *workload.stages):
        cut = cut_of.get(step.name)
        whole = workload.step_by_name[cut.operator if cut is not None else step.name]
        gathers = any(edge.kind is EdgeKind.GATHER for edge in whole.inputs)
        for model in step.models:
            own = todo.types(Part.LATENCY, model.operator, model.variant)
            types = own if cut is None else stage_types(todo, cut, known)
            if not types:
                continue
            alone = not model.names.can_batch(fans_out=whole.name in splits, gathers=gathers)
            sizes = {1} if alone or not meter.accepts_batches(model) else set(batch_sizes)
            kinds = dict.fromkeys((workload.speeds[name], workload.device_of(name)) for name in sorted(types))
            points += [Point(model, speed, size, device) for speed, device in kinds for size in sorted(sizes)]
    return points


def _latency(meter: LatencyMeter, points: Sequence[Point], clock: _ProgressClock) -> dict[Point, Latency]:
    once = {meter.key(point, 0): point for point in points}.values()
    todo = [(block, point) for block in range(BLOCKS) for point in once]
    for index, (block, point) in enumerate(todo):
        left_s = sum(meter.expected_s(later) for _, later in todo[index:])
        clock.now("latency", left_s, f"{point.model.operator} {point.model.variant}, round {block + 1}/{BLOCKS}")
        meter.measure(point, block)
        clock.spent("latency", meter.expected_s(point))
    return {point: meter.result(point) for point in points}


def _memory(
    workload: Workload, found: Survey, points: Sequence[Point], cache: Cache, clock: _ProgressClock
) -> dict[tuple[Model, Device], ModelMemory]:
    measured: dict[tuple[Model, Device], ModelMemory] = {}
    models = list(dict.fromkeys((point.model, point.device) for point in points))
    for index, (model, device) in enumerate(models):
        clock.now("memory", _MEMORY_S * (len(models) - index), f"memory of {model.operator} {model.variant}")
        sizes = sorted({point.batch for point in points if (point.model, point.device) == (model, device)})
        settings = {"model": model.sha256, "operator": model.operator, "sizes": sizes, "work": workload.digest}
        key = key_of(kind="memories", **settings, **key_of_device(device))
        if key not in cache:
            inputs = [batched(found.inputs[model.operator][:8], size)[0] for size in sizes]
            cache.put(key, model_memory(model, workload.input_names(model), inputs, device))
        measured[model, device] = ModelMemory(*cache[key])
        clock.spent("memory", _MEMORY_S)
    return measured


def measured_hop(cache: Cache) -> HopTime:
    """The hop. One that was measured while the machine was busy is measured again, and the less noisy one is kept."""
    key = key_of(kind="hop", jellybean=installed_version(), rounds=ROUNDS)
    kept = HopTime(*cache[key]) if key in cache else None
    if kept is None or kept.noise > NOISY_HOP:
        measured = measure_hop()
        if kept is None or measured.noise < kept.noise:
            kept = measured
            cache.put(key, astuple(kept))
    return kept


def _accuracy(
    workload: Workload, flow: Flow, cache: Cache, clock: _ProgressClock
) -> accuracy.Measured | dict[str, dict[str, float]] | None:
    if workload.labels is None:
        return None
    total = workload.request_count
    times_s = [time.monotonic()]  # of the start and of each step

    def step(done: int) -> None:
        times_s.append(time.monotonic())
        each_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1) / accuracy.CHUNK
        clock.spent("accuracy", times_s[-1] - times_s[-2])
        clock.now("accuracy", each_s * (total - done), f"accuracy, {done} of {total} requests")

    if accuracy.selection_count(workload) > accuracy.LIMIT:
        return accuracy.independent(workload, flow, cache, step)
    return accuracy.measure_accuracy(workload, flow, accuracy.all_selections(workload), cache, step)
