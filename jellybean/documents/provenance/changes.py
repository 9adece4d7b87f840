"""What has changed since an entry of the profiles was measured: pure comparison of its provenance with today's content.

An entry that was written by hand is compared only by the model digest that it states, if any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from jellybean.documents.provenance.content import Content
from jellybean.documents.schema.profiles import ProfilesDocument, VariantProfile
from jellybean.documents.schema.provenance import MeasuredContent, Origin, same_digest, short
from jellybean.documents.schema.reader import DocPath
from jellybean_agent import CPU


class Part(StrEnum):
    """The kind of an entry, in words for messages."""

    LATENCY = "latency"
    OUTPUTS = "messages"
    CUTS = "cuts"
    ACCURACY = "accuracy"
    HOP = "hop"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One entry of the profiles that is measured as a whole; the names that do not apply are empty."""

    part: Part
    operator: str = ""
    variant: str = ""
    worker_type: str = ""

    def to_dict(self) -> dict[str, str]:
        """The entry as JSON values."""
        return {
            "part": self.part.value,
            "operator": self.operator,
            "variant": self.variant,
            "type": self.worker_type,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """What was measured, and what is there now. `path`: where the profiles record it."""

    subject: str
    before: str
    after: str
    path: DocPath = field(compare=False)

    def __str__(self) -> str:
        return f"{self.subject} was {self.before}, is now {self.after}"


Changes = Mapping[Entry, tuple[Change, ...]]


def covering_rows(variants: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str], ...]:
    """A few selections that together contain every variant: row i has each operator's i-th variant, or its last."""
    most = max(map(len, variants.values()), default=0)
    return tuple({name: names[min(index, len(names) - 1)] for name, names in variants.items()} for index in range(most))


def content_changes(profiles: ProfilesDocument, content: Content) -> Changes:
    """Entry -> changes of content since it was measured; entries that are current, or are not used, are absent."""
    found: dict[Entry, tuple[Change, ...]] = {}
    for operator, variants in profiles.operators.items():
        for variant, profile in variants.items():
            if (operator, variant) in content.names:
                found |= _Variant(profiles, content, operator, variant).changes(profile)
    if (origin := profiles.provenance.accuracy) is not None and origin.run is not None:
        found[Entry(Part.ACCURACY)] = tuple(_Run(profiles, content, origin.run).everything())
    return {entry: tuple(dict.fromkeys(changes)) for entry, changes in found.items() if changes}


class _Variant:
    """Compares the entries of one variant."""

    def __init__(self, profiles: ProfilesDocument, content: Content, operator: str, variant: str) -> None:
        self.profiles, self.content, self.operator, self.variant = profiles, content, operator, variant
        self.path: DocPath = ("operators", operator, variant)

    def changes(self, profile: VariantProfile) -> dict[Entry, tuple[Change, ...]]:
        provenance, found = profile.provenance, dict[Entry, tuple[Change, ...]]()
        for worker_type, origin in provenance.latency.items():
            if worker_type in profile.latency and worker_type in self.content.speeds:
                path: DocPath = (*self.path, "provenance", "latency", worker_type)
                changes = [*self._model(origin.model), *self._latency(worker_type, origin, path)]
                found[Entry(Part.LATENCY, self.operator, self.variant, worker_type)] = tuple(changes)
        if (outputs := provenance.outputs) is not None:
            changes = [*self._model(outputs.model), *self._outputs(outputs)]
            found[Entry(Part.OUTPUTS, self.operator, self.variant)] = tuple(changes)
        if self.content.cuts.get((self.operator, self.variant)):
            found |= self._cuts(profile)
        return found

    def _model(self, digest: str | None) -> Iterator[Change]:
        if digest is not None:
            yield from model_change(self.content, self.operator, self.variant, digest, self.path)

    def _latency(self, worker_type: str, origin: Origin, path: DocPath) -> Iterator[Change]:
        if origin.run is None:
            return
        before, after = origin.speed, self.content.speeds[worker_type]
        if (before or 1.0) != (after or 1.0):  # without a speed it is measured as it is, which is a speed of 1
            yield Change(f"speed of {worker_type}", _speed(before), _speed(after), (*path, "speed"))
        device, device_now = origin.device or str(CPU), str(self.content.devices[worker_type])
        if device != device_now:
            yield Change(f"device of {worker_type}", device, device_now, (*path, "device"))
        run = _Run(self.profiles, self.content, origin.run)
        yield from run.names("input_names", self.operator, self.variant)
        yield from run.sample(self.operator, run.rows[0] if run.rows else {})

    def _outputs(self, origin: Origin) -> Iterator[Change]:
        if origin.run is None:
            return
        run = _Run(self.profiles, self.content, origin.run)
        yield from run.names("input_names", self.operator, self.variant)
        yield from run.names("output_names", self.operator, self.variant)
        for row in run.rows:
            if row.get(self.operator) == self.variant:
                yield from run.sample(self.operator, row)
        yield from run.readers(self.operator)

    def _cuts(self, profile: VariantProfile) -> dict[Entry, tuple[Change, ...]]:
        found: dict[Entry, list[Change]] = {}
        for index, cut in enumerate(profile.cuts or ()):
            found.setdefault(Entry(Part.CUTS, self.operator, self.variant), []).extend(self._model(cut.whole))
            for side, stage in (("head", cut.head), ("tail", cut.tail)):
                for worker_type, origin in stage.provenance.items():
                    if worker_type in stage.latency and worker_type in self.content.speeds:
                        path: DocPath = (*self.path, "cuts", index, side, "provenance", worker_type)
                        entry = Entry(Part.CUTS, self.operator, self.variant, worker_type)
                        found.setdefault(entry, []).extend(self._latency(worker_type, origin, path))
        return {entry: tuple(changes) for entry, changes in found.items()}


def model_change(content: Content, operator: str, variant: str, digest: str, path: DocPath) -> Iterator[Change]:
    """The change of a variant's model, if it is another one now."""
    today = content.measured.models.get(operator, {}).get(variant)
    if today is not None and not same_digest(digest, today):
        subject = f"{operator} {variant} ({content.names[operator, variant]})"
        yield Change(subject, short(digest), short(today), path)


class _Run:
    """Compares the content that one profiling run recorded with today's."""

    def __init__(self, profiles: ProfilesDocument, content: Content, run: int) -> None:
        self.record, self.today, self.content = profiles.runs[run].measured, content.measured, content
        self.path: DocPath = ("runs", str(run), "measured")
        self.rows = covering_rows({name: tuple(models) for name, models in self.record.models.items() if models})

    def sample(self, operator: str, row: Mapping[str, str]) -> Iterator[Change]:
        """Changes of what an operator's sample inputs came from: edges, data, streams, upstream models of `row`."""
        yield from self._value("stream_ids")
        todo, visited = [operator], {operator}
        while todo:
            name = todo.pop()
            yield from self._edges(name)
            for edge in self.record.edges.get(name, ()):
                upstream = edge.partition(" ")[0]
                if upstream in visited:
                    continue
                visited.add(upstream)
                if upstream not in self.record.edges:
                    yield from self._digest(f"held-out inputs of {upstream}", "inputs", upstream)
                    continue
                todo.append(upstream)
                if upstream in row:
                    yield from self._model(upstream, row[upstream])

    def readers(self, operator: str) -> Iterator[Change]:
        """A change of what is sent to the operators that read `operator`; a further reader of the same is none."""
        before, after = self._sent(self.record, operator), self._sent(self.today, operator)
        if before and after - before:
            words = [" and ".join(sorted(text or "each output" for text in sent)) for sent in (before, after)]
            yield Change(f"what {operator} sends", words[0], words[1], (*self.path, "edges"))

    def everything(self) -> Iterator[Change]:
        """Changes of anything that end-to-end accuracy depends on."""
        for operator, models in self.record.models.items():
            for variant in models:
                yield from self._model(operator, variant)
        for operator in self.record.edges:
            yield from self._edges(operator)
        for source in self.record.inputs:
            yield from self._digest(f"held-out inputs of {source}", "inputs", source)
        for name in ("stream_ids", "labels", "metric"):
            yield from self._value(name)
        if self.record.labels is not None and self.today.labels_of not in (None, self.record.labels_of):
            before = self.record.labels_of or "not given"
            recorded = "labels" if self.record.labels_of is None else "labels_of"
            yield Change("labels_of", before, self.today.labels_of or "", (*self.path, recorded))

    def _model(self, operator: str, variant: str) -> Iterator[Change]:
        if (operator, variant) in self.content.names:
            path: DocPath = (*self.path, "models", operator, variant)
            yield from model_change(self.content, operator, variant, self.record.models[operator][variant], path)
            yield from self.names("input_names", operator, variant)
            yield from self.names("output_names", operator, variant)

    def names(self, section: Literal["input_names", "output_names"], operator: str, variant: str) -> Iterator[Change]:
        """A change of which inputs or outputs of its model a variant names."""
        if operator not in self.today.edges or variant not in self.content.signatures.get(operator, {}):
            return
        before, after = (
            getattr(side, section).get(operator, {}).get(variant, "") for side in (self.record, self.today)
        )
        if before != after:
            subject = f"the {section.partition('_')[0]} of {operator} {variant}"
            yield Change(subject, before or "the default", after or "the default", (*self.path, section))

    def _edges(self, operator: str) -> Iterator[Change]:
        before, after = self.record.edges.get(operator), self.today.edges.get(operator)
        if before is None or after is None:
            return
        before, after = (tuple(map(self._edge, texts)) for texts in (before, after))
        same = before == after if operator in self.content.by_position else sorted(before) == sorted(after)
        if not same:
            path: DocPath = (*self.path, "edges", operator)
            yield Change(f"the inputs of {operator}", f"[{', '.join(before)}]", f"[{', '.join(after)}]", path)

    def _sent(self, content: MeasuredContent, operator: str) -> set[str]:
        """What an operator sends to its readers: kind and output of each edge, without the upstream's name."""
        edges = (self._edge(edge).partition(" ") for texts in content.edges.values() for edge in texts)
        return {what for upstream, _, what in edges if upstream == operator}

    def _edge(self, text: str) -> str:
        """An edge in words, without an output that the measured variants that are still there send by default.

        Whether a name is written depends on the other variants: with one that was removed it may have been necessary.
        """
        edge, _, output = text.partition(" output ")
        upstream = edge.partition(" ")[0]
        measured, known = self.record.models.get(upstream, {}), self.content.signatures.get(upstream, {})
        models = [model for variant, model in known.items() if variant in measured]
        is_default = bool(models) and all(model.output(output) == model.output(None) for model in models)
        return edge if output and is_default else text

    def _value(self, name: Literal["stream_ids", "labels", "metric"]) -> Iterator[Change]:
        before, after = getattr(self.record, name), getattr(self.today, name)
        if before is not None and after is not None and before != after:
            yield Change(name, before, after, (*self.path, name))

    def _digest(self, subject: str, section: str, name: str) -> Iterator[Change]:
        before, after = getattr(self.record, section).get(name), getattr(self.today, section).get(name)
        if before is not None and after is not None and not same_digest(before, after):
            yield Change(subject, short(before), short(after), (*self.path, section, name))


def _speed(speed: float | None) -> str:
    return "1 (none is given)" if speed is None else f"{speed:g}"
