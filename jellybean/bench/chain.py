"""Plans of chained operators, one per worker, for measurements of the serving overhead."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from jellybean_solver import (
    Arrivals,
    Certificate,
    Cost,
    Edge,
    ModelRef,
    Plan,
    PlannedOperator,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Termination,
)

SOURCE = "in"
_IDENTITY_S = 1e-5  # service time of the identity model


def chain(
    name: str,
    models: Sequence[Path],
    *,
    rate_per_s: float,
    device_s: float | None = None,
    message_bytes: float = 1024.0,
) -> Plan:
    """A plan with a chain of operators `stage_0`, `stage_1`, ... that run these model files, each on its own worker.

    `device_s`: service time of one run on an emulated device; None runs at the speed of this machine.
    """
    service = {"here": {1: ServiceTime(device_s or _IDENTITY_S, device_s or _IDENTITY_S)}}
    names = [f"stage_{index}" for index in range(len(models))]
    operators = tuple(
        PlannedOperator(stage, (Edge(before, stage),), "given", {"here": 1}, rate_per_s, service, sent, {}, _ref(model))
        for model, before, stage, sent in zip(
            models, [SOURCE, *names], names, [*({later: message_bytes} for later in names[1:]), {}], strict=False
        )
    )
    speed = 1.0 if device_s is None else 0.5  # any speed but 1 makes the agent emulate the service time
    workers = tuple(
        PlannedWorker(f"here-{index}", "here", "here", 0.0, Sharing.SHARED, {stage: rate_per_s}, 0.0, speed=speed)
        for index, stage in enumerate(names, 1)
    )
    return Plan(
        name=name,
        tiers=("here",),
        sources=(Source(SOURCE, "here", rate_per_s, message_bytes, Arrivals.PERIODIC),),
        operators=operators,
        workers=workers,
        routes=(Route(1.0, {stage: worker.name for stage, worker in zip(names, workers, strict=True)}),),
        links=(),
        slo=Slo(),
        utilisation=0.8,
        hop_s=0.001,
        cost=Cost(0.0, 0.0),
        accuracy=None,
        certificate=Certificate.of(0.0, 0.0, Termination.OPTIMAL),
    )


def _ref(model: Path) -> ModelRef:
    return ModelRef(model.name, hashlib.sha256(model.read_bytes()).hexdigest())
