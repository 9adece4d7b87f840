"""Predict a plan's figures as a flat record with the same keys as a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jellybean.planning.simulation import highest_sustained_rate, simulate_plan
from jellybean_solver import Plan

Progress = Callable[[float, float, str], None]


def predict(
    plan: Plan,
    *,
    seed: int = 0,
    rate_scale: float = 1.0,
    duration_s: float | None = None,
    progress: Progress = lambda done, total, label: None,
) -> dict[str, Any]:
    """Key -> figure: the plan's cost and accuracy, and simulated latency, throughput and highest sustained rate."""
    progress(0, 2, "queues")
    result = simulate_plan(plan, seed=seed, rate_scale=rate_scale, duration_s=duration_s)
    progress(1, 2, "highest sustained rate")
    highest = highest_sustained_rate(plan, seed=seed)
    progress(2, 2, "done")
    return {
        "cost_usd_per_h": plan.cost.total_usd_per_h,
        "accuracy": plan.accuracy,
        "throughput_per_s": result.throughput_per_s,
        "latency_p50_s": result.latency_p50_s,
        "latency_p90_s": result.latency_p90_s,
        "latency_p99_s": result.latency_p99_s,
        "highest_rate_per_s": highest,
        "offered": result.offered,
        "completed": result.completed,
        "utilisation": dict(result.utilisation),
        **({"workflows": {n: dataclasses.asdict(f) for n, f in result.workflows.items()}} if result.workflows else {}),
        "seed": seed,
        "rate_scale": rate_scale,
    }
