"""Decides what a profiling run measures: entries that are missing or stale, or all of them; and says why."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jellybean.documents import ProfilesDocument, Project
from jellybean.documents.layout import WORKFLOW_FILE, document_files, profile_command
from jellybean.documents.provenance.changes import Change, Entry, Part, content_changes
from jellybean.documents.provenance.content import Content
from jellybean.documents.provenance.noise import hop_noise
from jellybean.documents.provenance.staleness import entries_text, machine_changes
from jellybean.documents.schema.profiles import VariantProfile
from jellybean.documents.schema.provenance import Origin
from jellybean.documents.schema.reader import read_file
from jellybean.documents.schema.validation import validate_tree
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.profiler.accuracy import LIMIT
from jellybean.profiler.errors import ProfileError
from jellybean.quantities import did_you_mean
from jellybean_agent import Machine, this_machine

MISSING = "missing"
FRESH = "--fresh"
_MAX_REASONS = 8  # reasons printed; the others are counted


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run may measure. `fresh`: also what is current or by hand. `types`: only these worker types.

    `rows_only`: only times and memory of these types. `machines`: worker type -> machine that measures it, if not this
    one.
    """

    fresh: bool = False
    types: tuple[str, ...] = ()
    rows_only: bool = False
    machines: Mapping[str, Machine] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasurementPlan:
    """What a run measures and what it keeps.

    `measure`: entry -> why. `kept`: entries that stay because they are current. `by_hand`: entries that stay because no
    run measured them -> what has changed since, or nothing. `elsewhere`: entries of devices that are not measured here,
    although they are stale or missing -> why. `here`: worker types that can be measured here. `fresh`: everything is
    measured.
    """

    measure: Mapping[Entry, str]
    kept: tuple[Entry, ...]
    by_hand: Mapping[Entry, str]
    elsewhere: Mapping[Entry, str]
    here: frozenset[str] = frozenset()
    fresh: bool = False

    def variants(self, part: Part) -> frozenset[tuple[str, str]]:
        """(operator, variant) with an entry of this kind to measure."""
        return frozenset((entry.operator, entry.variant) for entry in self.measure if entry.part is part)

    def types(self, part: Part, operator: str, variant: str) -> frozenset[str]:
        """Worker types for which an entry of this kind is measured."""
        own = (e for e in self.measure if (e.part, e.operator, e.variant) == (part, operator, variant))
        return frozenset(entry.worker_type for entry in own if entry.worker_type)

    def of_types(self, types: Collection[str]) -> MeasurementPlan:
        """The part of it that is about these worker types, or about none."""
        kept = {"", *types}
        measure = {entry: why for entry, why in self.measure.items() if entry.worker_type in kept}
        return replace(self, measure=measure, here=self.here & frozenset(types))

    def to_dict(self) -> dict[str, Any]:
        """Entries that are measured (with `why`), kept, kept by hand, and left to other devices, as JSON values."""
        return {
            "measured": [_entry(entry, why) for entry, why in self.measure.items()],
            "kept": [_entry(entry) for entry in self.kept],
            "by_hand": [_entry(entry, why) for entry, why in self.by_hand.items()],
            "elsewhere": [_entry(entry, why) for entry, why in self.elsewhere.items()],
        }

    def with_more(self, others: Sequence[MeasurementPlan]) -> MeasurementPlan:
        """This plan and others together; of entries in several the first is kept."""
        measure, by_hand, elsewhere, kept = dict(self.measure), dict(self.by_hand), dict(self.elsewhere), [*self.kept]
        for other in others:
            measure, by_hand = {**other.measure, **measure}, {**other.by_hand, **by_hand}
            elsewhere = {**other.elsewhere, **elsewhere}
            kept += other.kept
        kept = [entry for entry in dict.fromkeys(kept) if entry not in measure]
        return replace(self, measure=measure, by_hand=by_hand, elsewhere=elsewhere, kept=tuple(kept))

    def lines(self) -> tuple[str, ...]:
        """What is measured and why, and what is kept, as sentences."""
        reasons: dict[str, list[Entry]] = {}
        for entry, why in self.measure.items():
            reasons.setdefault(why, []).append(entry)
        shown = list(reasons.items())[:_MAX_REASONS]
        lines = [f"measures {entries_text(entries)}: {why}" for why, entries in shown]
        if len(reasons) > len(shown):
            lines.append(f"and more, for {len(reasons) - len(shown)} other reasons")
        if self.kept:
            lines.append(f"keeps {entries_text(self.kept)}: current")
        if self.by_hand:
            lines.append(f"keeps {entries_text(self.by_hand)}: by hand (--fresh measures them too)")
        for why in dict.fromkeys(filter(None, self.by_hand.values())):
            stale = [entry for entry, change in self.by_hand.items() if change == why]
            lines.append(
                f"stale, but by hand: {entries_text(stale)}: {why}; correct figures and `model:`, or use --fresh"
            )
        if self.elsewhere:
            lines.append(f"leaves {entries_text(self.elsewhere)}: of types that are not measured here")
        return tuple(lines)


def _entry(entry: Entry, why: str = "") -> dict[str, str]:
    return {**entry.to_dict(), **({"why": why} if why else {})}


def todo_of(
    project: Project,
    known: ProfilesDocument | None,
    scope: Scope = Scope(),
    batch_sizes: Collection[int] = (),
) -> MeasurementPlan:
    """Compare the profiles of a project (`known`) with what they should have.

    `scope`: its types that have no speed are devices that this machine, or the one that it names, is one of. Without
    types all that have a speed are measured. `batch_sizes`: those to try.
    DocumentError if a worker type has to be measured that is not this machine's and has no `speed`.
    """
    return _Decision(project, known, scope, frozenset(batch_sizes)).todo()


class _Decision:
    """Decides entry by entry."""

    def __init__(
        self,
        project: Project,
        known: ProfilesDocument | None,
        scope: Scope,
        batch_sizes: frozenset[int],
    ) -> None:
        here = frozenset(scope.types)
        self.project, self.scope, self.here, self.batch_sizes = project, scope, here, batch_sizes
        self.fresh = scope.fresh
        content = content_of(project)
        self.known, self.speeds = known, content.speeds
        self.measurable = here or frozenset(name for name, speed in self.speeds.items() if speed is not None)
        self.changes: dict[Entry, str] = {}
        if known is not None:
            for entry, changes in (*self._by_machine(known), *content_changes(known, content).items()):
                self.changes[entry] = "; ".join(map(str, changes))

    def _by_machine(self, known: ProfilesDocument) -> Iterator[tuple[Entry, tuple[Change, ...]]]:
        """Entries that another machine than the one that would measure them now has measured."""
        machines = self.scope.machines
        for entry, changes in machine_changes(known, self.speeds, this_machine(), self.here).items():
            if entry.worker_type not in machines:
                yield entry, changes
        for name, machine in machines.items():
            for entry, changes in machine_changes(known, {}, machine, [name]).items():
                if entry.worker_type == name:
                    yield entry, changes

    def todo(self) -> MeasurementPlan:
        measure: dict[Entry, str] = {}
        elsewhere: dict[Entry, str] = {}
        by_hand: dict[Entry, str] = {}
        kept: list[Entry] = []
        for entry in self._entries():
            if (self.scope.rows_only and not entry.worker_type) or not self._is_own(entry):
                continue
            origin, present = self._origin(entry)
            hand = present and (origin is None or origin.by_hand)
            why = self._why(entry, present, hand=hand)
            if hand and not why:
                by_hand[entry] = self.changes.get(entry, "")
            elif not why:
                kept.append(entry)
            elif entry.worker_type and entry.worker_type not in self.measurable:
                elsewhere[entry] = why
            elif self.here and entry.part is Part.HOP and present:
                kept.append(entry)  # of the machines between which requests are routed, not of one device
            else:
                measure[entry] = why
        measure = self._with_whole_cuts(measure)
        if not self.here:
            self._refuse(elsewhere)
        return MeasurementPlan(measure, tuple(kept), by_hand, elsewhere, self.measurable, self.fresh)

    def _is_own(self, entry: Entry) -> bool:
        """False for entries of a workflow with a cascade that are those of the workflow without."""
        cascade = self.project.cascade
        if cascade is None:
            return True
        if self.scope.rows_only and self._profile(entry) is None:
            return False  # rows of one type alone would be a cascade without its share of requests
        return entry.part is Part.ACCURACY or entry.operator in cascade.variants

    def _why(self, entry: Entry, present: bool, *, hand: bool) -> str:
        """Why an entry should be measured; empty if it need not. `--fresh` leaves what cannot be measured here."""
        if not present:
            return MISSING
        if self.fresh and (not entry.worker_type or entry.worker_type in self.measurable):
            return FRESH
        if hand:
            return ""
        noise = hop_noise(self.known) if entry.part is Part.HOP and self.known is not None else ""
        return self.changes.get(entry, "") or noise or self._missing_part(entry)

    def _entries(self) -> Iterator[Entry]:
        """All entries that the project's profiles should have."""
        for operator, spec in self.project.workflow.operators.items():
            for variant in spec.variants:
                yield from (Entry(Part.LATENCY, operator, variant, name) for name in self.speeds)
                yield Entry(Part.OUTPUTS, operator, variant)
                if spec.cuts_of(variant):
                    yield Entry(Part.CUTS, operator, variant)
                    if self._cuts(operator, variant):
                        yield from (Entry(Part.CUTS, operator, variant, name) for name in self.speeds)
        if self.project.workflow.labels is not None:
            yield Entry(Part.ACCURACY)
        yield Entry(Part.HOP)

    def _profile(self, entry: Entry) -> VariantProfile | None:
        return self.known.operators.get(entry.operator, {}).get(entry.variant) if self.known is not None else None

    def _cuts(self, operator: str, variant: str) -> bool:
        """True if the variant has cuts whose stages a run may measure: cuts by hand are not chosen again."""
        profile = self._profile(Entry(Part.CUTS, operator, variant))
        if profile is None or not profile.cuts:
            return False
        origin = profile.provenance.cuts
        return self.fresh or (origin is not None and not origin.by_hand)

    def _origin(self, entry: Entry) -> tuple[Origin | None, bool]:
        """The entry's stated origin, and whether the profiles have the entry."""
        known, profile, name = self.known, self._profile(entry), entry.worker_type
        origin: tuple[Origin | None, bool] = (None, False)
        if known is not None and entry.part is Part.HOP:
            origin = known.provenance.hop, known.hop is not None
        elif known is not None and entry.part is Part.ACCURACY:
            origin = known.provenance.accuracy, known.accuracy is not None
        elif profile is not None and entry.part is Part.OUTPUTS:
            origin = profile.provenance.outputs, True
        elif profile is not None and entry.part is Part.LATENCY:
            origin = profile.provenance.latency.get(name), name in profile.latency
        elif profile is not None and not name:
            origin = profile.provenance.cuts, profile.cuts is not None
        elif profile is not None:
            stages = [stage for cut in profile.cuts or () for stage in (cut.head, cut.tail)]
            present = bool(stages) and all(name in stage.latency for stage in stages)
            origin = stages[0].provenance.get(name) if stages else None, present
        return origin

    def _missing_part(self, entry: Entry) -> str:
        """What a measured entry lacks that a run would measure now; empty if nothing."""
        profile = self._profile(entry)
        if entry.part is Part.ACCURACY:
            return "selections are missing" if self._lacks_selections() else self._missing_agreements()
        if profile is None or self.known is None:
            return ""
        if entry.part is Part.LATENCY:
            return self._missing_batches(profile, entry.worker_type)
        if entry.part is Part.OUTPUTS:
            operators = self.project.workflow.operators
            readers = [
                name for name, spec in operators.items() if any(e.upstream == entry.operator for e in spec.inputs)
            ]
            lacking = [name for name in readers if profile.bytes_to(name) is None]
            return f"the message to {', '.join(lacking)} is missing" if lacking else ""
        cuts, allowed = profile.provenance.cuts, self.project.workflow.operators[entry.operator].cuts_of(entry.variant)
        if not entry.worker_type and cuts is not None and cuts.run is not None and cuts.allowed < allowed:
            return f"{allowed} cuts are allowed, {cuts.allowed} were when it was cut"
        return ""

    def _missing_batches(self, profile: VariantProfile, worker_type: str) -> str:
        """Batch sizes that were not tried, or that another type of the same variant has, as a reason."""
        origin = profile.provenance.latency[worker_type]
        tried = set(self.known.runs[origin.run].batches) if self.known is not None and origin.run is not None else set()
        elsewhere = {size for batches in profile.latency.values() for size in batches}
        lacking = ((self.batch_sizes - tried) | (self.batch_sizes & elsewhere)) - set(profile.latency[worker_type])
        sizes = ", ".join(map(str, sorted(lacking)))
        return f"batch size {sizes} is missing" if lacking else ""

    def _missing_agreements(self) -> str:
        """That an audited workflow has no agreements yet, as a reason; empty if it is not so."""
        workflow, accuracy = self.project.workflow, self.known.accuracy if self.known is not None else None
        has_choices = any(len(spec.variants) > 1 for spec in workflow.operators.values())
        if workflow.slo.audit is None or accuracy is None or accuracy.end_to_end is None or not has_choices:
            return ""
        return "the agreements that an audit expects are missing" if accuracy.reference is None else ""

    def _lacks_selections(self) -> bool:
        operators = self.project.workflow.operators
        accuracy = self.known.accuracy if self.known is not None else None
        if accuracy is None or accuracy.per_operator is not None:
            return False
        if accuracy.independent is not None:
            known = accuracy.independent
            return any(
                variant not in known.get(name, {}) for name, spec in operators.items() for variant in spec.variants
            )
        choices = {name: tuple(spec.variants) for name, spec in operators.items() if len(spec.variants) > 1}
        rows = {tuple(row.selection.get(name) for name in choices) for row in accuracy.end_to_end or ()}
        wanted = itertools.islice(itertools.product(*choices.values()), LIMIT + 1)
        return not set(wanted) <= rows

    def _with_whole_cuts(self, measure: dict[Entry, str]) -> dict[Entry, str]:
        """Cuts that are chosen again are measured on all types that can be measured here."""
        for entry in [entry for entry in measure if entry.part is Part.CUTS and not entry.worker_type]:
            for name in self.speeds:
                if name in self.measurable:
                    measure.setdefault(Entry(Part.CUTS, entry.operator, entry.variant, name), measure[entry])
        return measure

    def _refuse(self, elsewhere: Mapping[Entry, str]) -> None:
        """DocumentError for worker types that would have to be measured, but are not this machine's."""
        types: dict[str, list[Entry]] = {}
        for entry in elsewhere:
            types.setdefault(entry.worker_type, []).append(entry)
        file = document_files(self.project.directory)["infrastructure"]
        command = profile_command(self.project.directory / WORKFLOW_FILE)
        problems = []
        for name, entries in types.items():
            pools = [pool for pool, spec in self.project.infrastructure.workers.items() if (spec.type or pool) == name]
            why = " and ".join(sorted({"missing" if elsewhere[entry] == MISSING else "stale" for entry in entries}))
            message = f"{entries_text(entries)}: {why}, but a {name} is a device of its own, as it has no speed"
            hint = (
                f"on a {name}: {command} --type {name}, which measures only {name}; on one "
                f"that has joined: {command} --on {pools[0]}-1; to emulate it "
                "here, give it a speed (0.1; 1: as fast as this machine); or write its figures by hand"
            )
            problems.append(DocumentProblem(str(file), None, None, f"workers.{pools[0]}", message, hint))
        if problems:
            raise DocumentError(problems)


def content_of(project: Project) -> Content:
    """The content of the project's files. ProfileError if the project was loaded without them."""
    if project.content is None:
        raise ProfileError(f"{project.directory}: the files of the project were not read")
    return project.content


def left_out_variants(project: Project, known: ProfilesDocument | None) -> frozenset[tuple[str, str]]:
    """(operator, variant) with a profile that workflow.yaml has as it is written, but not with the `--set` options.

    All that are left out if workflow.yaml is valid only with these options.
    """
    profiled = {
        (operator, variant) for operator, found in (known.operators if known else {}).items() for variant in found
    }
    operators = project.workflow.operators
    absent = {key for key in profiled if key[0] not in operators or key[1] not in operators[key[0]].variants}
    if not absent:
        return frozenset()
    written = validate_tree(WorkflowDocument, read_file(document_files(project.directory)["workflow"])).document
    if written is None:
        return frozenset(absent)
    return frozenset(
        (operator, variant)
        for operator, variant in absent
        if operator in written.operators and variant in written.operators[operator].variants
    )


def require_types(project: Project, here: Sequence[str]) -> None:
    """DocumentError if `--type` names a worker type that the fleet does not have."""
    speeds = content_of(project).speeds
    hint = f"worker types: {', '.join(speeds)}"
    problems = [
        DocumentProblem(f"--type {name}", None, None, "", "no worker has this type", did_you_mean(name, speeds) or hint)
        for name in here
        if name not in speeds
    ]
    if problems:
        raise DocumentError(problems)
