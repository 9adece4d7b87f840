"""Whether a plan's accuracy was measured with other labels or held-out inputs than today's."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from jellybean.display import formats
from jellybean.documents import Project
from jellybean.documents.layout import project_folder
from jellybean.documents.provenance.changes import Part
from jellybean.planning.cascades import planned_cascades
from jellybean_solver import Plan, selection_shares

_DATA = frozenset({"inputs", "stream_ids", "labels", "labels_of", "metric"})  # content of a run that is no model
_DIGITS = 0.005  # difference of two accuracies that were measured alike, in percentage points


def stale_accuracy_text(project: Project, plan: Plan) -> str:
    """A sentence with the changes since the plan's accuracy was measured, and the next step; empty without any."""
    used = [(cascade.operator, cascade.variant) for cascade in planned_cascades(plan)]
    project = next((own for own in project.alternatives if used == [own.chosen_cascade]), project)
    if plan.accuracy is None or not (changes := list(_changes(project, plan))):
        return ""
    folder = shlex.quote(str(project_folder(project.directory)))
    return (
        f"the accuracy of this plan was predicted with other data: {'; '.join(changes)}; so it is no prediction of "
        f"today's accuracy: `jellybean profile {folder}`, then `jellybean plan {folder}`"
    )


def _changes(project: Project, plan: Plan) -> Iterator[str]:
    """Changes of labels and held-out inputs since the profiles were measured, or since the plan was made with them."""
    stale = [
        str(found.change)
        for found in project.stale
        if any(entry.part is Part.ACCURACY for entry in found.entries) and _DATA & set(found.change.path)
    ]
    yield from stale
    profiled = _profiled_accuracy(project, plan)
    if not stale and profiled is not None and not math.isclose(profiled, plan.accuracy or 0.0, abs_tol=_DIGITS):
        before = formats.plain(plan.accuracy or 0.0, 4)
        yield f"accuracy of its variants was {before} % in the profiles, is now {formats.plain(profiled, 4)} %"


def _profiled_accuracy(project: Project, plan: Plan) -> float | None:
    """Measured end-to-end accuracy of the plan's variants in today's profiles, the mean of all requests.

    None if that of a selection is not there.
    """
    accuracy = project.profiles.accuracy if project.profiles is not None else None
    rows = (accuracy.end_to_end if accuracy is not None else None) or ()
    mean = 0.0
    for part in selection_shares(plan):
        found = next((row.accuracy for row in rows if row.selection.items() <= part.selection.items()), None)
        if found is None:
            return None
        mean += part.share * found if plan.mixes else found
    return mean
