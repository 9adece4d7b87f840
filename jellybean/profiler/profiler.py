"""Profiles a project: measures its variants and writes profiles.yaml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jellybean.bench.hop import measure_hop_s
from jellybean.documents import Project, write_profiles
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.profiler import accuracy
from jellybean.profiler.cache import Cache, key_of
from jellybean.profiler.cuts import LAYERS_S, CutModels, allowed_cuts, cut_models
from jellybean.profiler.document import Findings, noise_notes, to_profiles
from jellybean.profiler.flow import Flow
from jellybean.profiler.latency import BLOCKS, Latency, LatencyMeter, Point, batched
from jellybean.profiler.memory import memory_bytes
from jellybean.profiler.project import workload_of
from jellybean.profiler.survey import Survey, ratio_warnings, survey
from jellybean.profiler.workload import Model, Workload
from jellybean_solver import EdgeKind

Progress = Callable[[float, float, str], None]

SECONDS_PER_POINT = 1.0
BATCH_SIZES = (1, 4)
PROFILES_FILE = "profiles.yaml"
_SURVEY_S, _HOP_S, _MEMORY_S, _ACCURACY_S = 3.0, 8.0, 0.6, 4.0  # first estimates, for the progress bar only


@dataclass(frozen=True)
class Profiled:
    """The profiles that were written, and notes for the user on how precise they are."""

    document: ProfilesDocument
    notes: tuple[str, ...]


@dataclass
class _ProgressClock:
    """Progress in seconds: done so far and expected in total."""

    report: Progress
    done_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)  # part of the profile -> expected seconds left

    def now(self, part: str, left_s: float, label: str) -> None:
        """Report the start of a measurement (`label`) and the expected seconds left in its part of the profile."""
        self.parts[part] = left_s
        self.report(self.done_s, self.done_s + sum(self.parts.values()), label)

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
    resume: bool = True,
    allow_python: frozenset[str] = frozenset(),
) -> Profiled:
    """Measure every variant on every worker type and write profiles.yaml into the project's folder.

    Finished measurements are cached in the folder: after an interruption the next call resumes, unless `resume` is
    False. `progress` gets seconds done, expected total seconds, and the current measurement. `allow_python`: Python
    functions that may run here in addition to the built-in steps. ProfileError if a model fails or data is missing.
    """
    workload = workload_of(project, allow_python)
    cache = Cache.open(project.directory, resume=resume)
    models = [model for step in workload.steps for model in step.models]
    clock = _ProgressClock(progress, parts={"survey": _SURVEY_S, "hop": _HOP_S, "memory": _MEMORY_S * len(models)})
    clock.parts["accuracy"] = _ACCURACY_S if workload.labels is not None else 0.0
    clock.parts["cuts"] = LAYERS_S * sum(map(bool, allowed_cuts(project).values()))
    flow = Flow(workload)
    clock.now("survey", _SURVEY_S, "messages on the edges")
    found = survey(workload, flow)
    clock.spent("survey", _SURVEY_S)
    clock.now("cuts", clock.parts["cuts"], "where models can be cut")
    cuts = cut_models(project, workload, found, cache)
    clock.spent("cuts", clock.parts["cuts"])
    workload, found = cuts.workload, cuts.survey
    meter = LatencyMeter(workload, found.inputs, cache, seconds_per_point)
    points = _points(workload, meter, batch_sizes, cuts)
    latency = _latency(meter, points, clock)
    memory = _memory(workload, found, points, cache, clock)
    hop_s = _hop_s(cache, clock)
    findings = Findings(workload, found, latency, memory, hop_s, _accuracy(workload, flow, cache, clock), cuts)
    document = to_profiles(findings)
    write_profiles(project.directory / PROFILES_FILE, document)
    notes = [*ratio_warnings(project.workflow, found), *noise_notes(findings), *cuts.notes]
    if isinstance(findings.accuracy, dict):
        notes.append(
            f"{accuracy.selection_count(workload)} selections are too many to measure each ({accuracy.LIMIT} at most): "
            "accuracy was measured around the best selection found and is taken as independent per operator"
        )
    return Profiled(document, tuple(notes))


def _points(workload: Workload, meter: LatencyMeter, batch_sizes: Sequence[int], cuts: CutModels) -> list[Point]:
    """All points to measure. Only models that accept batches, of operators without fan-out and gather, get batches."""
    whole = {stage.name: cut.operator for cut in cuts.cuts for stage in cut.steps}
    splits = {edge.upstream for edge in workload.edges if edge.kind is EdgeKind.FAN_OUT}
    points = []
    for step in (*workload.steps, *workload.stages):
        own = workload.step_by_name[whole.get(step.name, step.name)]
        single = own.name in splits or any(edge.kind is EdgeKind.GATHER for edge in own.inputs)
        for model in step.models:
            sizes = {1} if single or not meter.accepts_batches(model) else {1, *batch_sizes}
            points += [Point(model, speed, size) for speed in set(workload.speeds.values()) for size in sorted(sizes)]
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
) -> dict[Model, float]:
    measured: dict[Model, float] = {}
    models = list(dict.fromkeys(point.model for point in points))
    for index, model in enumerate(models):
        clock.now("memory", _MEMORY_S * (len(models) - index), f"memory of {model.operator} {model.variant}")
        sizes = sorted({point.batch for point in points if point.model == model})
        key = key_of(kind="memory", model=model.sha256, operator=model.operator, sizes=sizes, work=workload.digest)
        if key not in cache:
            inputs = [batched(found.inputs[model.operator][:8], size)[0] for size in sizes]
            cache.put(key, memory_bytes(model, workload.step_by_name[model.operator].upstreams, inputs))
        measured[model] = cache[key]
        clock.spent("memory", _MEMORY_S)
    return measured


def _hop_s(cache: Cache, clock: _ProgressClock) -> float:
    clock.now("hop", _HOP_S, "time between two agents")
    key = key_of(kind="hop")
    if key not in cache:
        cache.put(key, measure_hop_s())
    clock.spent("hop", _HOP_S)
    return float(cache[key])


def _accuracy(
    workload: Workload, flow: Flow, cache: Cache, clock: _ProgressClock
) -> accuracy.Measured | dict[str, dict[str, float]] | None:
    if workload.labels is None:
        return None
    total = workload.request_count
    piece_s = _ACCURACY_S * accuracy.CHUNK / total

    def step(done: int) -> None:
        clock.spent("accuracy", piece_s)
        clock.now("accuracy", _ACCURACY_S * (total - done) / total, f"accuracy, {done} of {total} requests")

    if accuracy.selection_count(workload) > accuracy.LIMIT:
        return accuracy.independent(workload, flow, cache, step)
    return accuracy.measure_accuracy(workload, flow, accuracy.all_selections(workload), cache, step)
