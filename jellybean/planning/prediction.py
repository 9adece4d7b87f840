"""Predict a plan's figures as a flat record with the same keys as a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from jellybean.planning.predicted_latency import predicted_of
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.simulation import highest_sustained_rate, is_search_limit, seeds_of, simulate_plan
from jellybean.planning.soft_targets import latency_penalty, soft_targets
from jellybean_solver import (
    OutOfTimeError,
    Plan,
    Progress,
    RequestFigures,
    SimulationResult,
    limited_to,
    work_limit,
)

QUEUES_PART = 0.5  # of the time limit, for latencies and throughput; the rest is for the highest sustained rate


def predict(
    plan: Plan,
    *,
    seed: int = 0,
    rate_scale: float = 1.0,
    duration_s: float | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Key -> figure: the plan's cost and accuracy, and simulated latency, throughput and highest sustained rate.

    Figures are medians over simulations with consecutive seeds from `seed` on; with the defaults p99 is the one of
    `predicted_latency`. At the time limit of the work the figures are of what was simulated, and `ended_by_time_limit`
    says of how much. `highest_rate_is_limit`: no higher rate was tried, so that the plan may sustain more.
    OutOfTimeError if not one request was answered in the window by then.
    """
    seeds, results = seeds_of(plan, seed), list[SimulationResult]()
    wanted = len(seeds)
    with limited_to(work_limit().share(QUEUES_PART)) as queues_limit:
        for number, index in enumerate(seeds):
            if results and queues_limit.left() == 0.0:
                break
            progress(number, 2 * wanted, f"simulation {number + 1} of {wanted}")
            results.append(simulate_plan(plan, seed=index, rate_scale=rate_scale, duration_s=duration_s))
    _require_answers(results[0])
    if len(results) > 1 and not results[-1].complete:  # too short beside the others
        del results[-1]

    def searched(share: float) -> None:
        progress(wanted + share * wanted, 2 * wanted, "highest sustained rate")

    searched(0.0)
    highest = highest_sustained_rate(plan, seed=seed, progress=searched)
    progress(wanted, wanted, "done")
    ended, first = _what_ended(results, wanted, highest), results[0]
    workflows = {name: _figures([result.workflows[name] for result in results]) for name in first.workflows}
    figures = _figures(results)
    late = {name: own["latency_p99_s"] for name, own in (workflows or {"": figures}).items()}
    penalty = {"latency_penalty_usd_per_h": latency_penalty(plan, late)} if soft_targets(plan) else {}
    return {
        "cost_usd_per_h": plan.cost.total_usd_per_h,
        "accuracy": plan.accuracy,
        **figures,
        **penalty,
        "highest_rate_per_s": highest,
        "highest_rate_is_limit": highest is not None and is_search_limit(plan, highest),
        "utilisation": {name: median(result.utilisation[name] for result in results) for name in first.utilisation},
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


def _figures(samples: Sequence[RequestFigures]) -> Mapping[str, float]:
    """Medians of the figures of several simulations, and p99 with its interval."""
    latency, keys = predicted_of(samples), ("offered", "completed", "throughput_per_s", "latency_mean_s")
    return {
        **{key: median(getattr(sample, key) for sample in samples) for key in keys},
        "latency_p50_s": latency.p50_s,
        "latency_p90_s": latency.p90_s,
        "latency_p99_s": latency.p99_s,
        "latency_p99_low_s": latency.low_s,
        "latency_p99_high_s": latency.high_s,
    }
