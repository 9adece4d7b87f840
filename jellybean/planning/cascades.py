"""The cascades that plans use, in words."""

from __future__ import annotations

import json
from dataclasses import dataclass

from jellybean.documents.cascades.cascade import FIRST, THEN, UNSURE, part_name
from jellybean_agent import BUILTIN_STEPS_MODULE
from jellybean_solver import Plan, PlannedOperator


@dataclass(frozen=True, slots=True)
class PlannedCascade:
    """A cascade that a plan uses. `passed_on`: share of the requests that the second variant answers.

    `when`: the condition; empty if the cascade has no models.
    """

    operator: str
    variant: str
    first: str
    then: str
    when: str
    passed_on: float


def planned_cascades(plan: Plan) -> tuple[PlannedCascade, ...]:
    """The cascades of a plan."""
    known = {operator.name: operator for operator in plan.operators}
    found: list[PlannedCascade] = []
    for name, own in known.items():
        first, unsure, then = (known.get(part_name(name, part)) for part in (FIRST, UNSURE, THEN))
        if first is None or unsure is None or then is None or [edge.upstream for edge in then.inputs] != [unsure.name]:
            continue
        passed_on = then.inputs[0].ratio
        found.append(PlannedCascade(name, own.variant, first.variant, then.variant, _condition(unsure), passed_on))
    return tuple(found)


def _condition(unsure: PlannedOperator) -> str:
    """The condition of a cascade as text, from the arguments of its step."""
    python = unsure.model.python if unsure.model is not None else None
    if python is None or python.function != f"{BUILTIN_STEPS_MODULE}:unsure":
        return ""
    arguments, output = json.loads(python.arguments), unsure.inputs[0].output or ""
    return f"{f'softmax({output})' if arguments['softmax'] else output} < {arguments['below']:g}"
