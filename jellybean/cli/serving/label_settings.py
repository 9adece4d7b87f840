"""How a project's labels judge answers, as settings of its gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jellybean.documents import Project
from jellybean.ledger.labels import label_rule

if TYPE_CHECKING:
    from jellybean.serving.local.settings import LabelSettings


def label_settings(project: Project) -> LabelSettings:
    """The metric of the project's workflow, and the operator whose answers its labels are for."""
    from jellybean.serving.local.settings import LabelSettings

    rule = label_rule(project)
    return LabelSettings(rule.metric, rule.sink or "")
