"""The profiles while workers measure: written again with every row that is complete, so that none is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from jellybean.documents import ProfilesDocument
from jellybean.documents.provenance.changes import Entry, Part
from jellybean.profiler.cuts import CutModel
from jellybean.profiler.document import MeasuredBy, ProfilesMerge, merged_profiles
from jellybean.profiler.remote.worker_part import WorkerPart
from jellybean.profiler.workload import Model


class Rows:
    """Merges what was measured here (`merge`) with the rows of workers as they come. Thread-safe.

    A row is an entry of the profiles of one worker type. Cuts that are chosen anew are written once all their stages
    have been measured on all workers.
    """

    def __init__(
        self, merge: ProfilesMerge, parts: Mapping[str, WorkerPart], write: Callable[[ProfilesDocument], None]
    ) -> None:
        """`parts`: worker type -> what its worker measures."""
        self._merge, self._parts, self._write = merge, parts, write
        self._lock = threading.Lock()
        self._cut_of: dict[str, CutModel] = {
            stage.name: cut for cut in merge.findings.cut_models.cuts for stage in cut.steps
        }
        self._missing: Counter[Entry] = Counter()  # number of models of each row that are not measured yet
        for worker_type, part in parts.items():
            self._missing.update(self._row(worker_type, model) for model in part.models)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._missing)

    def done(self, worker_type: str) -> int:
        """Number of complete rows of a type."""
        return sum(not left for row, left in self._missing.items() if row.worker_type == worker_type)

    def count(self, worker_type: str) -> int:
        """Number of rows of a type."""
        return sum(row.worker_type == worker_type for row in self._missing)

    def add(self, worker_type: str, model: Model) -> None:
        """A model has been measured on a type; writes the profiles if this completes a row."""
        row = self._row(worker_type, model)
        with self._lock:
            self._missing[row] -= 1
            if not self._missing[row]:
                self._write(self._document())

    def document(self) -> ProfilesDocument:
        """The profiles with all complete rows."""
        with self._lock:
            return self._document()

    def _row(self, worker_type: str, model: Model) -> Entry:
        cut = self._cut_of.get(model.operator)
        if cut is None:
            return Entry(Part.LATENCY, model.operator, model.variant, worker_type)
        return Entry(Part.CUTS, cut.operator, cut.whole.variant, worker_type)

    def _document(self) -> ProfilesDocument:
        todo = self._merge.todo
        complete = {entry: why for entry, why in todo.measure.items() if self._is_complete(entry)}
        here = {entry: why for entry, why in complete.items() if not entry.worker_type and entry.part is not Part.CUTS}
        document = self._merge.known
        for worker_type, part in self._parts.items():
            rows = {
                entry: why
                for entry, why in complete.items()
                if entry.worker_type == worker_type or (not entry.worker_type and entry.part is Part.CUTS)
            }
            if any(entry.worker_type for entry in rows):
                document = merged_profiles(self._of_worker(worker_type, part, rows, document))
        if here or document is None:
            own = replace(self._merge, known=document, todo=replace(todo, measure=here, here=frozenset()))
            document = merged_profiles(own)
        return document

    def _of_worker(
        self, worker_type: str, part: WorkerPart, rows: Mapping[Entry, str], known: ProfilesDocument | None
    ) -> ProfilesMerge:
        """The rows of one worker, merged into the profiles so far."""
        agent, found = part.agent, self._merge.findings
        latency, memory = dict(part.latency), dict(part.memory)  # its thread adds to them
        findings = replace(found, latency=latency, memory=memory, hop=None, accuracy=None)
        by = MeasuredBy(agent.machine, agent.jellybean, agent.worker.name, agent.driver)
        todo = replace(self._merge.todo, measure=rows, here=frozenset([worker_type]))
        return replace(self._merge, findings=findings, known=known, todo=todo, by=by)

    def _is_complete(self, entry: Entry) -> bool:
        """True if all that an entry consists of was measured."""
        if entry.worker_type or entry.part is not Part.CUTS:
            return not self._missing[entry] if entry in self._missing else True
        stages = (row for row in self._missing if row.part is Part.CUTS)
        variant = (entry.operator, entry.variant)
        return all(not self._missing[row] for row in stages if (row.operator, row.variant) == variant)
