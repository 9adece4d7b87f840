"""What a plan was made for and what it costs. Serving does not depend on these figures of the plan document.

A gateway shows them beside what it measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_agent.brain.audit_view import served_sources


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Rates, targets, cost and certificate of a plan; None: the plan has no such target, or no profiled accuracy."""

    source_rates_per_s: Mapping[str, float]  # source -> requests per second of each site, as in the documents
    rate_per_s: float  # requests per second of all sites; a request is one message of each source
    cost_usd_per_h: float
    bound_usd_per_h: float | None  # proven lower bound on the cost; None if the plan is the best in something else
    gap: float | None  # (cost - bound) / cost; None likewise
    proof: str  # why the search ended: optimal, gap or time_limit
    accuracy: float | None
    slo_accuracy: float | None
    slo_latency_p99_s: float | None
    slo_budget_usd_per_h: float | None
    is_stale: bool  # it was planned with stale profiles
    slo_mean_accuracy: float | None = None  # None also if it is soft
    has_soft_mean: bool = False  # its mean accuracy is soft: it may be below the target, which counts a penalty
    has_soft_latency: bool = False  # its p99 latency is soft: it may exceed the target, and no alert says so
    overrides: tuple[str, ...] = ()  # values PATH=VALUE by which the documents were changed for it


def read_figures(document: Mapping[str, Any]) -> PlanFigures:
    """The figures of a plan document. KeyError, TypeError or ValueError if one is missing or no number."""
    slo, cost, proof = document["slo"], document["cost"], document["certificate"]
    has_soft_mean = slo.get("penalty_usd_per_h") is not None
    # With a penalty the certificate is of cost and penalties together.
    has_soft_latency = slo.get("soft_latency_p99_s") is not None
    has_penalty = has_soft_mean or has_soft_latency
    is_cheapest = proof.get("objective_of", "cost") == "cost"
    return PlanFigures(
        source_rates_per_s={str(source["name"]): float(source["rate_per_s"]) for source in served_sources(document)},
        rate_per_s=planned_rate_per_s(document),
        cost_usd_per_h=float(cost["compute_usd_per_h"]) + float(cost["network_usd_per_h"]),
        bound_usd_per_h=float(proof["bound"]) if is_cheapest and not has_penalty else None,
        gap=float(proof["gap"]) if is_cheapest and not has_penalty else None,
        proof=str(proof["termination"]),
        accuracy=_number(document.get("accuracy")),
        slo_accuracy=_number(slo.get("accuracy")),
        slo_mean_accuracy=None if has_soft_mean else _number(slo.get("mean_accuracy")),
        has_soft_mean=has_soft_mean,
        has_soft_latency=has_soft_latency,
        slo_latency_p99_s=_number(slo.get("latency_p99_s")),
        slo_budget_usd_per_h=_number(slo.get("budget_usd_per_h")),
        is_stale=bool(document.get("stale_profiles")),
        overrides=tuple(map(str, document.get("overrides", ()))),
    )


def planned_rate_per_s(document: Mapping[str, Any]) -> float:
    """Requests per second of all sites that a plan of one workflow was made for: what it promises to answer.

    A request is one message of each source. KeyError, TypeError or ValueError if a rate is missing or no number.
    """
    sites = document.get("sites", {})
    return min(float(source["rate_per_s"]) * int(sites.get(source["tier"], 1)) for source in served_sources(document))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
