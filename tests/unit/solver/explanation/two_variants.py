"""One operator with two variants on boxes and GPUs: small enough to plan by hand."""

from __future__ import annotations

from jellybean_solver import Counterfactual, EndToEnd, Explanation, Link, Problem, Slo
from tests.support.small_problems import box, gpu, operator, problem, variant

# 10/s: small keeps 1 box (or 0.5 of a gpu) busy, large 2 boxes or 1 gpu.
SMALL = variant("small", {"box": 0.1, "gpu": 0.05})
LARGE = variant("large", {"box": 0.2, "gpu": 0.1})
ACCURACY = EndToEnd(("see",), {("small",): 80.0, ("large",): 90.0})


def seeing(target: float | None = 85.0, boxes: int = 1, **slo: float) -> Problem:
    """One operator, two variants; a box costs 1 USD/h, a gpu 3, data are free to move."""
    return problem(
        operator("see", ["camera"], SMALL, LARGE),
        pools=[box(boxes), gpu(1)],
        accuracy=ACCURACY,
        slo=Slo(accuracy=target, **slo),
        links=[Link("edge", "cloud")],
    )


def change_of(explanation: Explanation, kind: str, subject: str) -> Counterfactual:
    """The one counterfactual of an explanation with this kind and subject; StopIteration if there is none."""
    return next(
        change
        for change in (*explanation.choices, *explanation.values)
        if (change.kind, change.subject) == (kind, subject)
    )
