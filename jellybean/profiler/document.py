"""Measurements of a run, merged into the profiles that exist: a profiles.yaml document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median
from types import MappingProxyType
from typing import Any

from jellybean.bench.hop import HopTime
from jellybean.display import formats
from jellybean.documents import ProfilesDocument
from jellybean.documents.provenance.changes import Entry, Part
from jellybean.documents.provenance.content import Content
from jellybean.documents.schema.profiles import (
    AccuracyProfile,
    BatchProfile,
    CutProfile,
    HopProfile,
    MeasuredSelection,
    StageProfile,
    VariantProfile,
)
from jellybean.documents.schema.provenance import (
    BY_HAND,
    CutsOrigin,
    DocumentProvenance,
    Origin,
    ProfileRun,
    VariantProvenance,
    short,
)
from jellybean.profiler.accuracy import Measured
from jellybean.profiler.cuts import CutModel, CutModels
from jellybean.profiler.latency import Latency, Point
from jellybean.profiler.measurement_plan import MeasurementPlan
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Model, Workload
from jellybean_agent import (
    CPU,
    Device,
    Machine,
    ModelMemory,
    driver_of,
    installed_version,
    neighbour_count,
    this_machine,
)

NOISY = 0.10  # relative spread of repeated latency measurements above which a note is printed
MIN_NOISE_S = 1e-3  # no note on the spread of shorter latencies: it comes from clocks and sleeps, not from the model


@dataclass(frozen=True)
class Findings:
    """All measurements of a run.

    `accuracy`: by selection (`Measured`), or operator -> variant -> percent; None if not measured. `hop`: None if not
    measured.
    """

    workload: Workload
    survey: Survey
    latency: Mapping[Point, Latency]
    memory: Mapping[tuple[Model, Device], ModelMemory]
    hop: HopTime | None
    accuracy: Measured | dict[str, dict[str, float]] | None
    cut_models: CutModels


@dataclass(frozen=True)
class MeasuredBy:
    """What measured a run: a machine, its version of JellyBean, and if it was not this one, the name of the worker.

    `driver`: of the worker's device.
    """

    machine: Machine
    jellybean: str | None
    worker: str | None = None
    driver: str | None = None

    def driver_of(self, device: Device) -> str | None:
        """Driver of the device that measured."""
        return driver_of(device) if self.worker is None else self.driver


@dataclass(frozen=True)
class ProfilesMerge:
    """Merges the measurements of run `number` into the profiles `known`, as `todo` says.

    `allowed_cuts`: (operator, variant) -> number of cuts that the workflow allows. `by`: what measured; None: this
    machine. `left_out`: (operator, variant) that `--set` leaves out of the workflow; their profiles stay. `taken`:
    numbers of runs that measured other parts of the file.
    """

    findings: Findings
    known: ProfilesDocument | None
    todo: MeasurementPlan
    content: Content
    allowed_cuts: Mapping[tuple[str, str], int]
    batch_sizes: Collection[int]
    number: int = 1
    by: MeasuredBy | None = None
    left_out: frozenset[tuple[str, str]] = frozenset()
    taken: frozenset[int] = frozenset()

    def document(self) -> ProfilesDocument:
        """The profiles: what was measured now, and what is kept, each with its origin."""
        known, number = self.known, self.number
        operators: dict[str, dict[str, VariantProfile]] = {}
        for step in self.findings.workload.steps:
            measured = ((model.variant, self._variant(model)) for model in step.models)
            if variants := {name: profile for name, profile in measured if profile is not None}:
                operators[step.name] = variants
        for operator, variants in (known.operators if known is not None else {}).items():
            for variant, profile in variants.items():
                stays = (operator, variant) in self.left_out or _is_by_hand(profile)
                if variant not in operators.get(operator, {}) and stays:
                    operators.setdefault(operator, {})[variant] = profile
        accuracy, hop = _accuracy(self.findings), self.findings.hop
        old = known.provenance if known is not None else DocumentProvenance()
        origins = DocumentProvenance(
            hop=Origin(run=number) if hop is not None else _hand_or(old.hop, known and known.hop),
            accuracy=Origin(run=number) if accuracy is not None else _hand_or(old.accuracy, known and known.accuracy),
        )
        merged = ProfilesDocument(
            machine=known.machine if known is not None and self.todo.by_hand else {},
            runs={**(known.runs if known is not None else {}), number: self._run()},
            hop=self._hop(),
            operators=operators,
            accuracy=accuracy if accuracy is not None or known is None else known.accuracy,
            provenance=origins,
        )
        return with_noise(without_unused_runs(merged))

    def _hop(self) -> HopProfile | None:
        """The hop: as measured now, otherwise as it was."""
        hop = self.findings.hop
        if hop is not None:
            return HopProfile(time=hop.seconds, noise=hop.noise)
        return self.known.hop if self.known is not None else None

    def _run(self) -> ProfileRun:
        return ProfileRun(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            worker=self._by.worker,
            jellybean=self._by.jellybean,
            batches=tuple(sorted(self.batch_sizes)),
            measured=self.content.measured,
            **asdict(self._by.machine),
        )

    @property
    def _by(self) -> MeasuredBy:
        return self.by or MeasuredBy(this_machine(), installed_version())

    def _variant(self, model: Model) -> VariantProfile | None:
        """The profile of a variant; None while there is no latency of it at all."""
        key, number = (model.operator, model.variant), self.number
        old = self.known.operators.get(model.operator, {}).get(model.variant) if self.known is not None else None
        was = old.provenance if old is not None else VariantProvenance()
        latency, origins = self._by_type(
            model, self.todo.types(Part.LATENCY, *key), old.latency if old is not None else {}, was.latency
        )
        if not latency:
            return None
        if Entry(Part.OUTPUTS, *key) in self.todo.measure:
            message, children = self._outputs(model)
            outputs: Origin | None = Origin(model=short(model.sha256), run=number)
        else:
            message, children = (old.message_bytes, old.children) if old is not None else ({}, ())
            outputs = _hand_or(was.outputs, True)
        cuts, cuts_origin = old.cuts if old is not None else None, was.cuts
        if key in self.todo.variants(Part.CUTS):
            cuts = self._cuts(model, cuts or ())
            cuts_origin = CutsOrigin(model=short(model.sha256), run=number, allowed=self.allowed_cuts[key])
        elif self.todo.fresh and not self.allowed_cuts[key]:
            cuts = cuts_origin = None
        elif cuts is not None and cuts_origin is None:
            cuts_origin = CutsOrigin(source=BY_HAND)
        provenance = VariantProvenance(latency=origins, outputs=outputs, cuts=cuts_origin)
        return VariantProfile(message=message, latency=latency, children=children, cuts=cuts, provenance=provenance)

    def _outputs(self, model: Model) -> tuple[dict[str, float], tuple[float, ...]]:
        sizes = self.findings.survey.message_bytes[model.operator, model.variant]
        same = set(sizes.values())
        children = self.findings.survey.child_shares.get((model.operator, model.variant), ())
        return ({"*": same.pop()} if len(same) == 1 else dict(sizes)), children

    def _by_type(
        self,
        model: Model,
        types: Collection[str],
        old: Mapping[str, dict[int, BatchProfile]],
        was: Mapping[str, Origin],
        *,
        stage: bool = False,
    ) -> tuple[dict[str, dict[int, BatchProfile]], dict[str, Origin]]:
        """Latencies by worker type and their origins: of `types` as measured now, of all others as they were."""
        latency: dict[str, dict[int, BatchProfile]] = {}
        origins: dict[str, Origin] = {}
        for name in dict.fromkeys([*self.content.speeds, *old]):
            if name in types:
                kind = model, self.findings.workload.speeds[name], self.findings.workload.device_of(name)
                points = [p for p in self.findings.latency if (p.model, p.speed, p.device) == kind]
                memory = self.findings.memory[model, kind[2]]
                latency[name] = {point.batch: _figures(self.findings.latency[point], memory) for point in points}
                origins[name] = self._origin(
                    name, None if stage else short(model.sha256), kind[2], neighbour_count(model.code[0], kind[2])
                )
            elif name in old:
                latency[name], origins[name] = old[name], was.get(name, Origin(source=BY_HAND))
        return latency, origins

    def _origin(self, worker_type: str, digest: str | None, device: Device, beside: int) -> Origin:
        """The origin of a row that this run measured."""
        return Origin(
            model=digest,
            speed=self.content.speeds[worker_type],
            device=str(device) if device != CPU else None,
            provider=device.provider if not device.is_cpu else None,
            driver=self._by.driver_of(device),
            beside=beside or None,
            run=self.number,
        )

    def _cuts(self, model: Model, old: tuple[CutProfile, ...]) -> tuple[CutProfile, ...]:
        """Profiles of a model's cuts. A stage that was measured before keeps the figures of the other types."""
        before = {stage.sha256: stage for cut in old for stage in (cut.head, cut.tail)}
        return tuple(
            CutProfile(
                layers=cut.layers,
                of=cut.of,
                crossing=cut.crossing_bytes,
                inputs=cut.inputs,
                whole=model.sha256,
                head=self._stage(cut, cut.head, before),
                tail=self._stage(cut, cut.tail, before),
            )
            for cut in self.findings.cut_models.cuts
            if cut.whole == model
        )

    def _stage(self, cut: CutModel, model: Model, before: Mapping[str, StageProfile]) -> StageProfile:
        old = before.get(model.sha256)
        types = stage_types(self.todo, cut, self.known)
        latency, origins = self._by_type(
            model,
            types,
            old.latency if old is not None else {},
            old.provenance if old is not None else {},
            stage=True,
        )
        file = model.path.relative_to(cut.folder).as_posix()
        return StageProfile(model=file, sha256=model.sha256, latency=latency, provenance=origins)


def merged_profiles(merge: ProfilesMerge) -> ProfilesDocument:
    """The merged document; the new run has the number after those that are still in use."""
    number = max(merge.known.runs if merge.known is not None else (), default=0) + 1
    others = set(replace(merge, number=number).document().runs) - {number}
    return replace(merge, number=max(others | merge.taken, default=0) + 1).document()


def without_unused_runs(document: ProfilesDocument) -> ProfilesDocument:
    """The document without the runs of which no entry is left."""
    used = {origin.run for origin in document.origins}
    runs = {number: run for number, run in document.runs.items() if number in used}
    return document.model_copy(update={"runs": runs})


def with_noise(document: ProfilesDocument) -> ProfilesDocument:
    """The document in which each run states the noise of the entries that it measured: their median and the highest."""
    noises: dict[int, list[float]] = {}
    for profile in document.all_variants:
        stages = [stage for cut in profile.cuts or () for stage in (cut.head, cut.tail)]
        for latency, origins in (
            (profile.latency, profile.provenance.latency),
            *((stage.latency, stage.provenance) for stage in stages),
        ):
            for name, batches in latency.items():
                origin = origins.get(name)
                if origin is not None and origin.run is not None:
                    noises.setdefault(origin.run, []).extend(b.noise for b in batches.values() if b.noise is not None)
    runs = {
        number: run.model_copy(update={"noise": _noise(noises.get(number))}) for number, run in document.runs.items()
    }
    return document.model_copy(update={"runs": runs})


def _noise(noises: Sequence[float] | None) -> str | None:
    """Noises in words; None if there are none."""
    if not noises:
        return None
    middle, worst = (formats.plain(100 * noise, 2) for noise in (median(noises), max(noises)))
    return f"block medians differ by {middle} %, at worst by {worst} %"


def stage_types(todo: MeasurementPlan, cut: CutModel, known: ProfilesDocument | None) -> frozenset[str]:
    """Worker types on which the stages of a cut are measured: all that can be, if it is not among the known cuts."""
    whole = cut.whole
    old = known.operators.get(whole.operator, {}).get(whole.variant) if known is not None else None
    stages = {(one.head.sha256, one.tail.sha256) for one in (old.cuts if old is not None else None) or ()}
    if (cut.head.sha256, cut.tail.sha256) in stages:
        return todo.types(Part.CUTS, whole.operator, whole.variant)
    return todo.here


def by_hand_marked(known: ProfilesDocument) -> ProfilesDocument:
    """The document in which every entry without an origin says that it was written by hand."""
    operators = {
        operator: {variant: _marked(profile) for variant, profile in variants.items()}
        for operator, variants in known.operators.items()
    }
    provenance = DocumentProvenance(
        hop=_hand_or(known.provenance.hop, known.hop), accuracy=_hand_or(known.provenance.accuracy, known.accuracy)
    )
    return known.model_copy(update={"operators": operators, "provenance": provenance})


def _marked(profile: VariantProfile) -> VariantProfile:
    was, hand = profile.provenance, Origin(source=BY_HAND)
    latency = {name: was.latency.get(name, hand) for name in profile.latency}
    origin = CutsOrigin(source=BY_HAND) if profile.cuts is not None and was.cuts is None else was.cuts
    provenance = VariantProvenance(latency=latency, outputs=was.outputs or hand, cuts=origin)
    if profile.cuts is None:
        return profile.model_copy(update={"provenance": provenance})
    cuts = tuple(
        cut.model_copy(update={"head": _marked_stage(cut.head), "tail": _marked_stage(cut.tail)})
        for cut in profile.cuts
    )
    return profile.model_copy(update={"provenance": provenance, "cuts": cuts})


def _marked_stage(stage: StageProfile) -> StageProfile:
    origins = {name: stage.provenance.get(name, Origin(source=BY_HAND)) for name in stage.latency}
    return stage.model_copy(update={"provenance": origins})


def _is_by_hand(profile: VariantProfile) -> bool:
    """True if an entry of the variant was not measured by a run, so that it is not removed with the variant."""
    return any((origin := profile.provenance.latency.get(name)) is None or origin.by_hand for name in profile.latency)


def _hand_or(origin: Origin | None, present: Any) -> Origin | None:
    """The origin of an entry that stays: as stated, otherwise by hand; None if there is no such entry."""
    return origin or (Origin(source=BY_HAND) if present else None)


def _figures(latency: Latency, memory: ModelMemory) -> BatchProfile:
    return BatchProfile(
        mean=latency.mean_s,
        p50=latency.p50_s,
        p90=latency.p90_s,
        p99=latency.p99_s,
        memory=memory.host_bytes,
        device_memory=memory.device_bytes,
        noise=latency.noise,
    )


def _accuracy(findings: Findings) -> AccuracyProfile | None:
    match findings.accuracy:
        case None:
            return None
        case Measured() as measured:
            return _of_selections(measured, {step.name for step in findings.workload.steps if len(step.models) > 1})
        case by_operator:
            return AccuracyProfile(independent=by_operator)


def _of_selections(measured: Measured, choices: Collection[str]) -> AccuracyProfile:
    """The accuracy of selections, and their agreement. `choices`: operators with several variants."""
    chosen = [{name: one for name, one in selection.items() if name in choices} for selection in measured.selections]
    if not choices:
        return AccuracyProfile(end_to_end=(MeasuredSelection(selection={}, accuracy=measured.percent[0]),))
    rows = tuple(
        MeasuredSelection(selection=selection, accuracy=percent, agreement=agreement)
        for selection, percent, agreement in zip(chosen, measured.percent, measured.agreement, strict=True)
    )
    return AccuracyProfile(end_to_end=rows, reference=chosen[measured.reference], requests=measured.requests)


def noise_notes(
    latency: Mapping[Point, Latency], speeds: Mapping[str, float], devices: Mapping[str, Device] = MappingProxyType({})
) -> list[str]:
    """A note if repeated measurements of a latency differ by more than `NOISY`; otherwise an empty list.

    `speeds`, `devices`: by worker type.
    """
    relevant = {point: found for point, found in latency.items() if found.p50_s >= MIN_NOISE_S}
    noisy = {point: found.noise for point, found in relevant.items() if found.noise > NOISY}
    if not noisy:
        return []
    worst = max(noisy, key=lambda point: noisy[point])
    types = [name for name, speed in speeds.items() if (speed, devices.get(name, CPU)) == (worst.speed, worst.device)]
    return [
        f"the machine was busy or unsteady: {len(noisy)} of {len(relevant)} latencies of a millisecond or more vary "
        f"by more than {100 * NOISY:g} % between repeated blocks, the worst by {_percent_above(noisy[worst], NOISY)} % "
        f"({worst.model.operator} {worst.model.variant} on {' / '.join(types)}, batch {worst.batch}); "
        "for better figures close other programs "
        "and run `jellybean profile --fresh --seconds 2`"
    ]


def _percent_above(share: float, limit: float) -> str:
    """A share above a limit in percent, with as many digits as it takes to read it as more than the limit."""
    texts = (f"{100 * share:.{digits}f}" for digits in range(4))
    return next((text for text in texts if float(text) > 100 * limit), f"just over {100 * limit:g}")
