"""Model files of a plan that are other files by now: its figures, and those measured, are of the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jellybean_agent import AgentError, hash_model
from jellybean_solver import Plan

_DIGITS = 12  # of a hash in a sentence


def altered_models(directory: Path, plan: Plan) -> Iterator[str]:
    """`OPERATOR VARIANT (FILE) was HASH, is now HASH` for each model of the plan whose file in the project differs."""
    for operator in plan.variants:
        model = operator.model
        if model is None or not model.path or not (directory / model.path).is_file():
            continue
        try:
            found = hash_model(directory / model.path)[0]
        except (AgentError, OSError) as error:
            found = f"unreadable ({error})"
        if found != model.sha256:
            shown = found if " " in found else found[:_DIGITS]
            yield f"{operator.name} {operator.variant} ({model.path}) was {model.sha256[:_DIGITS]}, is now {shown}"


def altered_models_text(directory: Path, plan: Plan) -> str:
    """The same as one sentence with what follows from it; empty if no model is altered."""
    altered = "; ".join(altered_models(directory, plan))
    if not altered:
        return ""
    return (
        f"models have changed since this plan was made: {altered}. Its figures are those of the models before, and a "
        "worker that serves it cannot start again: `jellybean validate` names the next step"
    )
