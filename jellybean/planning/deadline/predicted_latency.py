"""The predicted p99 latency of a plan: the only definition, used by every command that shows or checks one.

A prediction is the median of five simulations with the seeds 0 to 4, each of the same window (`simulation.window_s`).
The interval is from the least to the greatest of them: with probability 1 - 2 / 2**5 = 94 % it contains the median of
all simulations of that length, whatever their distribution (order statistics: David & Nagaraja, sec. 7.1). With many
sites one long simulation is made; then the interval is a 95 % interval from batch means (Law, sec. 9.5.3).
Simulations are deterministic and cached in this process, so all commands show the same figure for the same plan.
A time limit of the work (`limited_work`) ends them: then fewer count, the last of which is cut short, or without any
the closed form with the range of its error; the prediction says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import median, stdev
from typing import Any, TypeVar

from jellybean.planning.deadline.second_process import SIMULATIONS
from jellybean.planning.deadline.stated_latency import PredictedLatency, breach_text
from jellybean.planning.simulation import (
    SEEDS,
    seeds_of,
)
from jellybean_protos import plan_format
from jellybean_solver import (
    CLOSED_FORM_RATIO,
    Plan,
    RequestFigures,
    SimulationResult,
    Slo,
    deadlines_s,
    json_values,
    p99_by_workflow,
    stressed,
    with_deadlines,
    work_limit,
)

FAR = 2.0  # p99 latencies of one plan with different seeds differ by less than this factor
QUICK_FAR = 1.25  # a quick decision rejects a plan whose first p99 exceeds the target by this factor; may be wrong
STUDENT_T = 2.776  # 97.5 % quantile of Student's t for 5 batches (4 degrees of freedom)

MAX_CACHED = 4_096  # simulations whose p99 latencies are kept in this process

Key = TypeVar("Key")
Value = TypeVar("Value")
_Figures = Mapping[str, RequestFigures]  # by workflow
_cached: dict[tuple[str, int], _Figures] = {}  # (content hash of the plan, seed) -> figures
_cut_short: dict[tuple[str, int], _Figures] = {}  # the same of simulations that a time limit ended
# Content hash of a plan -> limits one of which its first simulation is certain to exceed, and its latencies by then.
_missed: dict[str, tuple[Mapping[str, float], Mapping[str, float]]] = {}


def predicted_p99(plan: Plan) -> Mapping[str, PredictedLatency]:
    """Workflow -> predicted p99 latency; a single workflow has the empty name."""
    content, seeds = _content(plan), seeds_of(plan)
    known = [seed for seed in seeds if (content, seed) in _cached]
    others = [seed for seed in seeds if seed not in known]  # of which two may be made at the same time
    samples = [sample for batch in (known, *_batches(others)) for sample in _figures(plan, batch, None)]
    complete = len(samples) == len(seeds_of(plan)) and all(is_whole for _, is_whole in samples)
    return _predicted([figures for figures, _ in samples] or [_estimated(plan)], complete=complete)


def predictions(results: Sequence[SimulationResult]) -> Mapping[str, PredictedLatency]:
    """The same from simulations that were made already, one for each of `seeds_of`."""
    return _predicted([_by_workflow(result) for result in results])


def predicted_of_all(results: Sequence[SimulationResult]) -> PredictedLatency:
    """The predicted p99 latency of the requests of all workflows together, from simulations as in `predictions`."""
    return _predicted([{"": result} for result in results])[""]


def simulated_figures(plan: Plan, seed: int) -> Mapping[str, RequestFigures]:
    """Workflow -> figures of one of the simulations that a prediction is made of; cached.

    Without time for it, those that a simulation was cut short at, or the closed form.
    """
    samples = _figures(plan, (seed,), None)
    return samples[0][0] if samples else _estimated(plan)


def accepted_p99_s(plan: Plan) -> Mapping[str, float]:
    """Workflow -> a p99 target that the plan meets: a majority of a prediction's simulations do."""
    seeds = seeds_of(plan)
    samples = [simulated_figures(plan, seed) for seed in seeds[: len(seeds) // 2 + 1]]
    return {name: max(sample[name].latency_p99_s for sample in samples) for name in samples[0]}


def _batches(seeds: Sequence[int]) -> Iterator[Sequence[int]]:
    """The seeds in groups of as many as are simulated at the same time; that may become more meanwhile."""
    done = 0
    while done < len(seeds):
        batch = seeds[done : done + SIMULATIONS.at_once]
        done += len(batch)
        yield batch


def _figures(plan: Plan, seeds: Sequence[int], targets_s: Mapping[str, float] | None) -> list[tuple[_Figures, bool]]:
    """As `simulated_figures`, and whether they are of all requests: with targets, a simulation may end at a miss.

    Simulations for which there is no time are left out.
    """
    content = _content(plan)
    missing = [seed for seed in seeds if (content, seed) not in _cached and work_limit().left() != 0.0]
    made = dict(zip(missing, SIMULATIONS.simulate(plan, missing, targets_s) if missing else (), strict=True))
    samples: list[tuple[_Figures, bool]] = []
    for seed in seeds:
        key = content, seed
        if seed in made:
            result, is_whole = made[seed]
            figures = _by_workflow(result)
            if is_whole:
                _remember(_cached, key, figures)
            elif result.complete:
                samples.append((figures, False))
                continue
            elif _answered(figures) > _answered(_cut_short.get(key, {})):
                _remember(_cut_short, key, figures)
        if key in _cached:
            samples.append((_cached[key], True))
        elif key in _cut_short:
            samples.append((_cut_short[key], False))
    return samples


def _remember(cache: dict[Key, Value], key: Key, value: Value) -> None:
    if len(cache) >= MAX_CACHED:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _answered(figures: _Figures) -> int:
    """The requests that the figures of the workflow with the fewest are of."""
    return min((one.completed for one in figures.values()), default=0)


def _estimated(plan: Plan) -> _Figures:
    """Figures of no request: p99 latencies in closed form, also of workflows without a target."""
    targeted = replace(
        plan,
        slo=_with_target(plan.slo),
        workflows=tuple(replace(one, slo=_with_target(one.slo)) for one in plan.workflows),
    )
    nan = math.nan
    return {
        name: RequestFigures(0, 0, nan, nan, nan, nan, p99_s, ()) for name, p99_s in p99_by_workflow(targeted).items()
    }


def _with_target(slo: Slo) -> Slo:
    return slo if slo.latency_p99_s is not None else replace(slo, latency_p99_s=1.0)


def _by_workflow(result: SimulationResult) -> Mapping[str, RequestFigures]:
    if result.workflows:
        return result.workflows
    names = (field.name for field in fields(RequestFigures))
    return {"": RequestFigures(**{name: getattr(result, name) for name in names})}


def _content(plan: Plan) -> str:
    """Content hash of everything in a plan that a simulation depends on: not its prices, targets and certificate."""
    parts = (plan.sources, plan.operators, plan.workers, plan.links, plan.routes, plan.sites, plan.hop_s, plan.spread)
    names = [workflow.name for workflow in plan.workflows]
    return plan_format.content_hash({"parts": json_values(parts), "workflows": names})


def _predicted(samples: Sequence[_Figures], *, complete: bool = True) -> Mapping[str, PredictedLatency]:
    """The prediction from one or more simulations, by workflow."""
    return {name: _of_workflow([sample[name] for sample in samples], complete) for name in samples[0]}


def _of_workflow(samples: Sequence[RequestFigures], complete: bool) -> PredictedLatency:
    p50_s, p90_s = (median(getattr(sample, f"latency_{share}_s") for sample in samples) for share in ("p50", "p90"))
    p99s = sorted(sample.latency_p99_s for sample in samples)
    p99_s, requests = median(p99s), samples[0].offered
    if not requests:
        lowest, highest = CLOSED_FORM_RATIO
        return PredictedLatency(p50_s, p90_s, p99_s, p99_s / highest, p99_s / lowest, 0, 0, complete=False)
    if len(samples) > 1:
        return PredictedLatency(p50_s, p90_s, p99_s, p99s[0], p99s[-1], len(samples), requests, complete)
    batches_s = [batch_s for batch_s in samples[0].latency_p99_batches_s if math.isfinite(batch_s)]
    if len(batches_s) < len(samples[0].latency_p99_batches_s):  # cut short: too few answers for an interval
        return PredictedLatency(p50_s, p90_s, p99_s, p99_s, p99_s, 1, requests, complete)
    half_s = STUDENT_T * stdev(batches_s) / math.sqrt(len(batches_s))
    return PredictedLatency(p50_s, p90_s, p99_s, max(0.0, p99_s - half_s), p99_s + half_s, 1, requests, complete)


@dataclass(frozen=True)
class Judged:
    """Predicted p99 latencies of a plan beside their targets in seconds, by workflow, for those with a target.

    A single workflow has the empty name. Targets are hard or soft; soft ones are never missed.
    """

    plan: Plan
    p99: Mapping[str, PredictedLatency]
    targets_s: Mapping[str, float]

    @property
    def kept(self) -> bool:
        """True if all hard targets are met."""
        return all(self.p99[name].p99_s <= target_s for name, target_s in self._hard_s.items())

    @property
    def share(self) -> float:
        """The largest p99 latency as a multiple of its hard target."""
        return max(self.p99[name].p99_s / target_s for name, target_s in self._hard_s.items())

    @property
    def _hard_s(self) -> Mapping[str, float]:
        return {name: target_s for name, target_s in self.targets_s.items() if name not in self.penalties_usd_per_h}

    @cached_property
    def penalties_usd_per_h(self) -> Mapping[str, float]:
        """Workflow with a soft target -> what its p99 latency counts where it exceeds that."""
        stated = self.plan.slo_by_workflow
        return {
            name: stated[name].latency_penalty(p99.p99_s)
            for name, p99 in self.p99.items()
            if stated[name].soft_latency_p99_s is not None
        }

    @cached_property
    def closed_form_s(self) -> Mapping[str, float]:
        """Workflow with a target -> its p99 latency in closed form."""
        return p99_by_workflow(with_deadlines(self.plan, self.targets_s))

    @property
    def text(self) -> str:
        """The missed target with the largest excess; empty if all are met. Runs a simulation without queues."""
        return "" if self.kept else breach_text(self.plan, self.p99, latency_targets(self.plan))

    def to_list(self) -> list[dict[str, Any]]:
        """JSON values, an item per target: the prediction, and the closed form with its measured error."""
        closed, (low, high) = self.closed_form_s, CLOSED_FORM_RATIO
        return [
            {
                "workflow": name,
                "simulated_s": p99.p99_s,
                "simulated_low_s": p99.low_s,
                "simulated_high_s": p99.high_s,
                "simulations": p99.simulations,
                "requests": p99.requests,
                "closed_form_s": closed[name],
                "closed_form_over_simulated": {"lowest": low, "highest": high},
                "target_s": self.targets_s[name],
                **({"penalty_usd_per_h": self.penalties_usd_per_h[name]} if name in self.penalties_usd_per_h else {}),
            }
            for name, p99 in self.p99.items()
        ]


def latency_targets(plan: Plan) -> Mapping[str, float]:
    """Workflow -> hard p99 latency target in seconds; a single workflow has the empty name."""
    return {name: target_s for name, target_s in deadlines_s(plan).items() if target_s is not None}


def stated_targets(plan: Plan) -> Mapping[str, float]:
    """As `latency_targets`, with the soft ones."""
    soft_s = {name: slo.soft_latency_p99_s for name, slo in plan.slo_by_workflow.items()}
    targets_s = {name: soft_s[name] or target_s for name, target_s in deadlines_s(plan).items()}
    return {name: target_s for name, target_s in targets_s.items() if target_s is not None}


def check_latency(plan: Plan) -> str | None:
    """Describe the missed p99 latency target with the largest excess; None if all targets are met."""
    breach = latency_breach(plan)
    return None if breach is None else breach.text


def judged_latency(plan: Plan) -> Judged | None:
    """Predict the plan's p99 latencies and compare them with their targets; None if it has no target."""
    targets_s = stated_targets(plan)
    if not targets_s:
        return None
    predicted = predicted_p99(plan)
    return Judged(plan, {name: predicted[name] for name in targets_s}, targets_s)


def judged_so_far(plan: Plan) -> Judged | None:
    """The same from the simulations of the plan that were made already; None without any, or without a target."""
    targets_s, content = stated_targets(plan), _content(plan)
    samples = [_cached[content, seed] for seed in seeds_of(plan) if (content, seed) in _cached]
    if not targets_s or not samples:
        return None
    predicted = _predicted(samples, complete=len(samples) == len(seeds_of(plan)))
    return Judged(plan, {name: predicted[name] for name in targets_s}, targets_s)


def latency_breach(plan: Plan) -> Judged | None:
    """The predicted p99 latencies if the plan misses a target; None if it meets all targets or has no target.

    Makes no more simulations than needed to know that the targets are met.
    """
    quick = quick_judgement(plan, far=math.inf, whole=True)
    if quick is None or quick.kept:
        return None
    judged = replace(quick, p99=predicted_p99(stressed(plan)))
    return None if judged.kept else judged


def first_p99_s(plan: Plan, limits_s: Mapping[str, float]) -> tuple[Mapping[str, float], bool]:
    """Workflow -> p99 latency in the first of a prediction's simulations, and whether all of it was made.

    It ends once a workflow is certain to exceed its limit; what is known then is of the requests so far.
    """
    content = _content(plan)
    missed = _missed.get(content)
    if missed is not None and all(limits_s.get(name, math.inf) <= limit for name, limit in missed[0].items()):
        return missed[1], False
    samples = _figures(plan, seeds_of(plan)[:1], limits_s)
    figures, is_whole = samples[0] if samples else (_estimated(plan), False)
    p99_s = {name: one.latency_p99_s for name, one in figures.items()}
    if samples and not is_whole and work_limit().left() != 0.0:
        _remember(_missed, content, (limits_s, p99_s))
    return p99_s, is_whole


def quick_judgement(plan: Plan, *, far: float = QUICK_FAR, most: int = SEEDS, whole: bool = False) -> Judged | None:
    """Compare p99 latencies with their targets by few simulations; None without a target.

    Times and rates are those of the plan with its margin. Simulations stop once a majority meets the targets or misses
    one, if the first p99 is below a target by the factor `FAR`, or above it by `far`. `most`: most simulations. Unless
    they are to be `whole`, each ends once it is certain to miss a target; the p99 stated then is that of the requests
    so far.
    """
    targets_s = latency_targets(plan)
    if not targets_s:
        return None
    within = stressed(plan)
    seeds = seeds_of(within, most=most)
    samples: list[_Figures] = []
    partial = 0
    for sample, is_whole in _one_by_one(within, seeds, None if whole else targets_s):
        samples.append(sample)
        partial += not is_whole
        p99s = {name: [sample[name].latency_p99_s for sample in samples] for name in targets_s}
        if all(_is_met(p99s[name], target_s, len(seeds)) for name, target_s in targets_s.items()):
            break
        clearly = math.inf if partial else far
        if any(_is_missed(p99s[name], target_s, len(seeds), clearly) for name, target_s in targets_s.items()):
            break
    complete = not partial and len(samples) == len(seeds_of(within))
    predicted = _predicted(samples or [_estimated(within)], complete=complete)
    return Judged(plan, {name: predicted[name] for name in targets_s}, targets_s)


def _one_by_one(
    plan: Plan, seeds: Sequence[int], targets_s: Mapping[str, float] | None
) -> Iterator[tuple[Mapping[str, RequestFigures], bool]]:
    """The figures of each seed; the first alone, as it often decides."""
    yield from _figures(plan, seeds[:1], targets_s)
    for batch in _batches(seeds[1:]):
        yield from _figures(plan, batch, targets_s)


def _is_met(p99_s: Sequence[float], target_s: float, seeds: int) -> bool:
    """True if the median over all seeds cannot exceed the target, or the first sample is far below it."""
    return sum(sample <= target_s for sample in p99_s) > seeds // 2 or p99_s[0] * FAR <= target_s


def _is_missed(p99_s: Sequence[float], target_s: float, seeds: int, far: float) -> bool:
    """True if the median over all seeds is certain to exceed the target, or the first sample is far above it."""
    return p99_s[0] >= far * target_s or sum(sample > target_s for sample in p99_s) > seeds // 2
