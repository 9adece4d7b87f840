"""The entries of a project's profiles that no longer match its content, in words, and notes on their machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jellybean.documents.provenance.changes import Change, Changes, Entry, Part, content_changes
from jellybean.documents.provenance.content import Content
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.provenance import Origin, ProfileRun
from jellybean.documents.schema.reader import DocPath, Tree
from jellybean.errors import DocumentProblem
from jellybean_agent import Machine

MACHINE_FIELDS = ("cpu", "cores", "system", "onnxruntime", "threads")
_MAX_NAMES = 4  # names listed of one part; the JSON output has all


@dataclass(frozen=True, slots=True)
class StaleProfile:
    """One change, and the entries that were measured before it. `problem`: the same as a located problem."""

    change: Change
    entries: tuple[Entry, ...]
    problem: DocumentProblem

    def __str__(self) -> str:
        return self.problem.message

    def to_dict(self) -> dict[str, Any]:
        """The stale entries as JSON values."""
        change = self.change
        entries = [entry.to_dict() for entry in self.entries]
        return {"changed": change.subject, "before": change.before, "after": change.after, "entries": entries}


def stale_profiles(profiles: ProfilesDocument, content: Content, tree: Tree) -> tuple[StaleProfile, ...]:
    """All changes of content since entries of `profiles` were measured. `tree`: the document, for positions."""
    entries: dict[Change, list[Entry]] = {}
    for entry, changes in content_changes(profiles, content).items():
        for change in changes:
            entries.setdefault(change, []).append(entry)
    return tuple(
        StaleProfile(change, tuple(stale), tree.problem(change.path, f"{change}; stale: {entries_text(stale)}"))
        for change, stale in entries.items()
    )


def entries_text(entries: Iterable[Entry]) -> str:
    """Entries in words: `latency of shape mlp and read read on edge-box, messages of shape mlp, accuracy`."""
    by_part: dict[Part, list[Entry]] = {}
    for entry in entries:
        by_part.setdefault(entry.part, []).append(entry)
    return ", ".join(_part_text(part, by_part[part]) for part in Part if part in by_part)


def _part_text(part: Part, entries: list[Entry]) -> str:
    names = list(dict.fromkeys(f"{entry.operator} {entry.variant}" for entry in entries if entry.operator))
    if not names:
        return part.value
    types = list(dict.fromkeys(entry.worker_type for entry in entries if entry.worker_type))
    return f"{part.value} of {_listed(names)}" + (f" on {_listed(types)}" if types else "")


def _listed(names: list[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[: _MAX_NAMES - 1])} and {len(names) - _MAX_NAMES + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def machine_changes(
    profiles: ProfilesDocument, speeds: Mapping[str, float | None], machine: Machine, here: Iterable[str] = ()
) -> Changes:
    """Entry -> differences between the machine that measured it and `machine`.

    Worker types without a speed are devices of their own, so they are compared only if `here` names them.
    """
    known = {name for name, speed in speeds.items() if speed is not None} | set(here)
    found: dict[Entry, tuple[Change, ...]] = {}
    for entry, origin in _timed(profiles):
        if origin.run is not None and (entry.worker_type in known or entry.part is Part.HOP):
            found[entry] = (*found.get(entry, ()), *_differences(profiles.runs[origin.run], origin.run, machine))
    return {entry: tuple(dict.fromkeys(changes)) for entry, changes in found.items() if changes}


def _timed(profiles: ProfilesDocument) -> Iterable[tuple[Entry, Origin]]:
    """Entries that depend on the machine, with their origins; the stages of a variant's cuts count as one entry."""
    for operator, variants in profiles.operators.items():
        for variant, profile in variants.items():
            for name, origin in profile.provenance.latency.items():
                yield Entry(Part.LATENCY, operator, variant, name), origin
            for stage in (stage for cut in profile.cuts or () for stage in (cut.head, cut.tail)):
                for name, origin in stage.provenance.items():
                    yield Entry(Part.CUTS, operator, variant, name), origin
    if profiles.provenance.hop is not None:
        yield Entry(Part.HOP), profiles.provenance.hop


def _differences(run: ProfileRun, number: int, machine: Machine) -> list[Change]:
    pairs = ((name, getattr(run, name), getattr(machine, name)) for name in MACHINE_FIELDS)
    path: DocPath = ("runs", str(number))
    return [
        Change(name, str(before), str(after), (*path, name))
        for name, before, after in pairs
        if before is not None and after is not None and before != after
    ]


def notes_on_machines(
    profiles: ProfilesDocument, speeds: Mapping[str, float | None], machine: Machine
) -> tuple[str, ...]:
    """Notes on times that were not measured on this machine, or for one worker type on unlike machines."""
    differences = dict.fromkeys(
        change for changes in machine_changes(profiles, speeds, machine).values() for change in changes
    )
    notes = []
    if differences:
        words = "; ".join(f"{change.subject} {change.before}, here {change.after}" for change in differences)
        notes.append(f"the times were not measured on a machine like this one, and hold for theirs ({words})")
    runs: dict[str, dict[tuple[object, ...], int]] = {}
    for entry, origin in _timed(profiles):
        if origin.run is not None and entry.worker_type in speeds:
            run = profiles.runs[origin.run]
            key = tuple(getattr(run, name) for name in MACHINE_FIELDS)
            runs.setdefault(entry.worker_type, {}).setdefault(key, origin.run)
    for worker_type, machines in runs.items():
        if len(machines) > 1:
            numbers = " and ".join(map(str, machines.values()))
            notes.append(f"{worker_type} was measured on {len(machines)} unlike machines (runs {numbers})")
    return tuple(notes)
