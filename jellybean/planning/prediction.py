"""Predict a plan's figures as a flat record with the same keys as a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from jellybean.planning.deadline.predicted_latency import predicted_of_all, predictions
from jellybean.planning.deadline.soft_targets import latency_penalty, soft_targets
from jellybean.planning.deadline.stated_latency import PredictedLatency
from jellybean.planning.simulation import highest_sustained_rate, is_search_limit, seeds_of, simulate_plan
from jellybean_solver import (
    OutOfTimeError,
    Plan,
    RequestFigures,
    SimulationResult,
    limited_to,
    work_limit,
)

QUEUES_PART = 0.5  # of the time limit, for latencies and throughput; the rest is for the highest sustained rate
# Simulations of a plan that take as long as the search for its highest rate with one seed: 0.4 to 0.7 of digits, and of
# the two workflows' example. Only the shown progress depends on it.
RATE_STEPS = 0.5
Progress = Callable[[float, float, str], None]


def predict(
    plan: Plan,
    *,
    seed: int = 0,
    rate_scale: float = 1.0,
    duration_s: float | None = None,
    progress: Progress = lambda done, total, label: None,
) -> dict[str, Any]:
    """Key -> figure: the plan's cost and accuracy, and simulated latency, throughput and highest sustained rate.

    Figures are medians over simulations with consecutive seeds from `seed` on; with the defaults p99 is the one of
    `predicted_latency`. At the time limit of the work the figures are of what was simulated, and `ended_by_time_limit`
    says of how much. `highest_rate_is_limit`: no higher rate was tried, so that the plan may sustain more.
    OutOfTimeError if not one request was answered in the window by then.
    """
    seeds, limit = seeds_of(plan, seed), work_limit()
    results: list[SimulationResult] = []
    steps = len(seeds) * (1 + RATE_STEPS)
    with limited_to(limit.share(QUEUES_PART)) as queues_limit:
        for index in seeds:
            if results and queues_limit.left() == 0.0:
                break
            progress(index - seed, steps, f"simulation {index - seed + 1} of {len(seeds)}")
            results.append(simulate_plan(plan, seed=index, rate_scale=rate_scale, duration_s=duration_s))
    _require_answers(results[0])
    if len(results) > 1 and not results[-1].complete:  # too short beside the others
        del results[-1]
    label = "highest sustained rate"
    progress(len(seeds), steps, label)
    highest = highest_sustained_rate(
        plan, seed=seed, progress=lambda share: progress(len(seeds) + share * (steps - len(seeds)), steps, label)
    )
    progress(steps, steps, "done")
    ended = _what_ended(results, len(seeds), highest)
    p99 = predictions(results)
    workflows = {
        name: _figures([result.workflows[name] for result in results], p99[name]) for name in results[0].workflows
    }
    return {
        "cost_usd_per_h": plan.cost.total_usd_per_h,
        "accuracy": plan.accuracy,
        **_figures(results, predicted_of_all(results)),
        **_penalty(plan, p99),
        "highest_rate_per_s": highest,
        "highest_rate_is_limit": highest is not None and is_search_limit(plan, highest),
        "utilisation": {
            name: median(result.utilisation[name] for result in results) for name in results[0].utilisation
        },
        **({"workflows": workflows} if workflows else {}),
        "simulations": len(results),
        "seed": seed,
        "rate_scale": rate_scale,
        **({"ended_by_time_limit": ended} if ended else {}),
    }


def _require_answers(result: SimulationResult) -> None:
    """OutOfTimeError for a simulation that ended before any request of some workflow was answered in its window."""
    if not min(one.completed for one in (result.workflows or {"": result}).values()) and not result.complete:
        raise OutOfTimeError(
            "time ended before a request was simulated from its arrival to its answer; allow more time"
        )


def _what_ended(results: Sequence[SimulationResult], wanted: int, highest: float | None) -> str:
    """What the figures are of if the time limit ended the simulations, as a sentence; else empty."""
    parts = []
    if not results[0].complete:
        parts.append(
            f"the figures are of the first {results[0].offered:,} requests of 1 simulation instead of {wanted}"
        )
    elif len(results) < wanted:
        parts.append(f"the figures are of {len(results)} simulations instead of {wanted}")
    if highest is None:
        parts.append("the highest sustained rate is not known")
    return f"the time limit ended the simulations: {', and '.join(parts)}" if parts else ""


def _penalty(plan: Plan, p99: Mapping[str, PredictedLatency]) -> Mapping[str, float]:
    """What p99 latencies count where they exceed soft targets; empty without one."""
    if not soft_targets(plan):
        return {}
    penalty = latency_penalty(plan, {name: own.p99_s for name, own in p99.items()})
    return {"latency_penalty_usd_per_h": penalty}


def _figures(samples: Sequence[RequestFigures], latency: PredictedLatency) -> Mapping[str, float]:
    """Medians of the figures of several simulations, and p99 with its interval."""
    keys = ("offered", "completed", "throughput_per_s", "latency_mean_s")
    return {
        **{key: median(getattr(sample, key) for sample in samples) for key in keys},
        "latency_p50_s": latency.p50_s,
        "latency_p90_s": latency.p90_s,
        "latency_p99_s": latency.p99_s,
        "latency_p99_low_s": latency.low_s,
        "latency_p99_high_s": latency.high_s,
    }
