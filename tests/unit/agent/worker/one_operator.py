"""A plan of one operator on one worker, and an executor that a test holds up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from jellybean_agent import Executor, OperatorInput, PlanView, plan_view
from jellybean_agent.execution.executor import RunResult
from tests.support.tiny_models import make_plan


def view_of(root: Path, sha256: str, batch: int) -> PlanView:
    """One operator on one worker."""
    route = {"double": "edge-1"}
    return plan_view(make_plan(root, {"double": (["x"], sha256)}, [(1.0, route)], sources={"x": "edge"}, batch=batch))


class Gated(Executor):
    """A real executor whose first run waits until all requests are there."""

    def __init__(self, *args: object, **more: object) -> None:
        self.gate = threading.Event()
        super().__init__(*args, **more)

    def run(self, inputs: Sequence[OperatorInput], requests: int = 1) -> RunResult:
        assert self.gate.wait(20)
        return super().run(inputs, requests)
