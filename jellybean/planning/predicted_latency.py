"""The p99 latency of a plan by simulation: the only definition, used by every command that shows or judges one.

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
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median, stdev
from typing import Any

from jellybean.display import formats
from jellybean.planning.simulation import (
    SEEDS,
    WARMUP_SHARE,
    load_by_link,
    load_by_worker,
    seeds_of,
    simulate_plan,
    unloaded_latency_s,
    window_s,
)
from jellybean_protos import plan_format
from jellybean_solver import (
    CLOSED_FORM_RATIO,
    Clock,
    Loss,
    Plan,
    Problem,
    RequestFigures,
    StopSimulationError,
    json_values,
    judged_losses,
    limited_to,
    p99_by_workflow,
    plan_after,
    request_streams,
    served,
    stressed,
    with_deadlines,
    work_limit,
)

FAR = 2.0  # p99 latencies of one plan with different seeds differ by less than this factor
STUDENT_T = 2.776  # 97.5 % quantile of Student's t for 5 batches (4 degrees of freedom)
SLOWER_THAN_P99 = 0.01  # share of the requests that may miss a p99 target
DEVIATIONS = 6.0  # a Poisson count exceeds its mean by this many standard deviations once in a billion windows
MAX_CACHED = 4_096  # simulations whose p99 latencies are kept in this process

Figures = Mapping[str, RequestFigures]  # by workflow
Targets = Mapping[str, float]  # workflow -> p99 latency in seconds; a single workflow has the empty name


@dataclass(frozen=True, slots=True)
class PredictedLatency:
    """Predicted latencies in seconds, p99 with its confidence interval, from `simulations` of `requests` each.

    `complete`: made by the definition; otherwise simulations were left out because a decision needed no more, or for
    lack of time. Without any `simulations` the p99 is the closed form, its interval the range of the closed form's
    error, and the others are nan.
    """

    p50_s: float
    p90_s: float
    p99_s: float
    low_s: float
    high_s: float
    simulations: int
    requests: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class _Sample:
    """A simulation's figures. `missed_s`: targets at one of which it ended, as that was certain to be missed."""

    figures: Figures
    is_whole: bool
    missed_s: Targets

    def answers(self, targets_s: Targets) -> bool:
        """True if it says all that a simulation says which may end at these targets."""
        is_tighter = all(targets_s.get(name, math.inf) <= own_s for name, own_s in self.missed_s.items())
        return self.is_whole or (is_tighter and bool(self.missed_s))


_cached: dict[tuple[str, int], _Sample] = {}  # (content hash of the plan, seed) -> its latest simulation


class _LateRequests:
    """Counts requests of the window that miss their target; ends the simulation once they are too many in any case."""

    def __init__(self, plan: Plan, targets_s: Targets) -> None:
        duration_s = window_s(plan)
        self.targets_s, self.start_s = targets_s, WARMUP_SHARE * duration_s
        self.end_s, self.stopped = self.start_s + duration_s, False
        self.allowed = dict.fromkeys(targets_s, 1.0)
        for stream in request_streams(plan):
            mean = stream.rate_per_s * duration_s
            most = SLOWER_THAN_P99 * (mean + DEVIATIONS * math.sqrt(mean))
            self.allowed[stream.workflow] = self.allowed.get(stream.workflow, 1.0) + most

    def arrived(self, now: float, workflow: str) -> None:
        """No use for arrivals."""

    def busy(self, place: str, begin_s: float, end_s: float) -> None:
        """No use for runs."""

    def answered(self, arrived_s: float, now: float, workflow: str) -> None:
        """Count a late request."""
        target_s = self.targets_s.get(workflow, math.inf)
        if now - arrived_s > target_s and self.start_s <= arrived_s < self.end_s:
            self.allowed[workflow] -= 1.0
            if self.allowed[workflow] < 0.0:
                self.stopped = True
                raise StopSimulationError


def _simulated(plan: Plan, seed: int, targets_s: Targets) -> _Sample | None:
    """One of a prediction's simulations; it may end once a target is missed for certain. None without time for it."""
    key = _content(plan), seed
    known = _cached.get(key)
    if known is not None and known.answers(targets_s):
        return known
    if work_limit().left() == 0.0:
        return None if known is None or known.missed_s else known
    late = _LateRequests(plan, targets_s)
    result = simulate_plan(plan, seed=seed, observer=late if targets_s else None)
    if not known and len(_cached) >= MAX_CACHED:
        _cached.pop(next(iter(_cached)))
    figures = result.workflows or {"": result}
    sample = _Sample(figures, result.complete and not late.stopped, targets_s if late.stopped else {})
    _cached[key] = sample
    return sample


def simulated_p99_s(plan: Plan, seed: int = 0, targets_s: Targets | None = None) -> tuple[Targets, bool]:
    """Workflow -> p99 latency in one of a prediction's simulations, and whether all of it was made.

    It ends once a workflow is certain to exceed its target; what is known then is of the requests so far.
    """
    sample = _simulated(plan, seed, targets_s or {})
    figures = _estimated(plan) if sample is None else sample.figures
    return {name: one.latency_p99_s for name, one in figures.items()}, sample is not None and sample.is_whole


def predicted_p99(plan: Plan) -> Mapping[str, PredictedLatency]:
    """Workflow -> predicted p99 latency; a single workflow has the empty name."""
    samples = [sample for seed in seeds_of(plan) if (sample := _simulated(plan, seed, {})) is not None]
    return _predicted(plan, samples, len(seeds_of(plan)))


def _predicted(plan: Plan, samples: Sequence[_Sample], wanted: int) -> Mapping[str, PredictedLatency]:
    """The prediction from what was simulated of the plan, by workflow."""
    complete = len(samples) == wanted and all(sample.is_whole for sample in samples)
    every = [sample.figures for sample in samples] or [_estimated(plan)]
    return {name: predicted_of([figures[name] for figures in every], complete) for name in every[0]}


def _estimated(plan: Plan) -> Figures:
    """Figures of no request: p99 latencies in closed form, also of workflows without a target."""
    targeted = with_deadlines(plan, {name: own or 1.0 for name, own in plan.deadlines_s.items()})
    nan = math.nan
    return {
        name: RequestFigures(0, 0, nan, nan, nan, nan, p99_s, ()) for name, p99_s in p99_by_workflow(targeted).items()
    }


def _content(plan: Plan) -> str:
    """Content hash of everything in a plan that a simulation depends on: not its prices, targets and certificate."""
    parts = (plan.sources, plan.operators, plan.workers, plan.links, plan.routes, plan.sites, plan.hop_s, plan.spread)
    names = [workflow.name for workflow in plan.workflows]
    return plan_format.content_hash({"parts": json_values(parts), "workflows": names})


def predicted_of(samples: Sequence[RequestFigures], complete: bool = True) -> PredictedLatency:
    """The prediction from simulations, of one workflow or of all requests."""
    p50_s, p90_s = (median(getattr(sample, f"latency_{share}_s") for sample in samples) for share in ("p50", "p90"))
    p99s = sorted(sample.latency_p99_s for sample in samples)
    p99_s, requests, made = median(p99s), samples[0].offered, len(samples)
    low_s, high_s = p99s[0], p99s[-1]
    batches_s = [batch_s for batch_s in samples[0].latency_p99_batches_s if math.isfinite(batch_s)]
    if not requests:
        lowest, highest = CLOSED_FORM_RATIO
        low_s, high_s, made, complete = p99_s / highest, p99_s / lowest, 0, False
    elif made == 1 and len(batches_s) == len(samples[0].latency_p99_batches_s):  # else cut short: too few answers
        half_s = STUDENT_T * stdev(batches_s) / math.sqrt(len(batches_s))
        low_s, high_s = max(0.0, p99_s - half_s), p99_s + half_s
    return PredictedLatency(p50_s, p90_s, p99_s, low_s, high_s, made, requests, complete)


@dataclass(frozen=True)
class Judged:
    """Predicted p99 latencies of a plan beside their targets in seconds, by workflow, for those with a target.

    A single workflow has the empty name. Targets are hard or soft; soft ones are never missed.
    """

    plan: Plan
    p99: Mapping[str, PredictedLatency]
    targets_s: Targets

    @property
    def kept(self) -> bool:
        """True if all hard targets are met."""
        return self.share <= 1.0

    @property
    def share(self) -> float:
        """The largest p99 latency as a multiple of its hard target; 0 without one."""
        return max((self.p99[name].p99_s / target_s for name, target_s in self._hard_s.items()), default=0.0)

    @property
    def _hard_s(self) -> Targets:
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
    def closed_form_s(self) -> Targets:
        """Workflow with a target -> its p99 latency in closed form."""
        return p99_by_workflow(with_deadlines(self.plan, self.targets_s))

    @property
    def text(self) -> str:
        """The missed target with the largest excess; empty if all are met. Runs a simulation without queues.

        "About" if its p99 is not of all simulations.
        """
        if self.kept:
            return ""
        plan, margin = stressed(self.plan), self.plan.margin.text
        worst = max(self._hard_s, key=lambda name: self.p99[name].p99_s / self._hard_s[name])
        p99 = self.p99[worst]
        stated = formats.interval(p99.p99_s, p99.low_s, p99.high_s)
        made = f"{formats.count(p99.simulations, 'simulation')} of {p99.requests:,} requests"
        if not p99.simulations:
            made = "in closed form, as there was no time for a simulation"
        unloaded_s = unloaded_latency_s(plan, workflow=worst)  # nan if there is no time for that
        unloaded = f"mean latency over all routes with zero queueing delay {formats.duration(unloaded_s)}; "
        return (
            f"{f'{worst}: ' if worst else ''}p99 latency{f' with {margin}' if margin else ''} would be "
            f"{stated if p99.complete else f'about {formats.duration(p99.p99_s)}'}, above the SLO of "
            f"{formats.duration(self._hard_s[worst])} "
            f"({made}; {unloaded if math.isfinite(unloaded_s) else ''}{_busiest(plan)})"
        )

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


def _busiest(plan: Plan) -> str:
    """The busiest worker with its utilisation; the busiest link with its share of the bandwidth if that is higher."""
    workers, links = load_by_worker(plan), load_by_link(plan)
    worker = max(workers, key=workers.__getitem__)
    link = max(links, key=links.__getitem__, default=None)
    if link is None or links[link] <= workers[worker]:
        return f"busiest worker {worker} at utilisation {workers[worker]:.2f}"
    bandwidth = plan.link_by_tiers[link].bandwidth_bytes_per_s or math.inf
    share = f"{links[link]:.1%}".replace("%", " %")
    return f"busiest link {' -> '.join(link)} at {share} of {formats.plain(bandwidth * 8e-6)} Mbit/s"


def latency_targets(plan: Plan) -> Targets:
    """Workflow -> hard p99 latency target in seconds; a single workflow has the empty name."""
    return {name: target_s for name, target_s in plan.deadlines_s.items() if target_s is not None}


def judged_latency(plan: Plan) -> Judged | None:
    """Predict the plan's p99 latencies and compare them with their targets, hard or soft; None if it has none."""
    soft_s = {name: own for name, slo in plan.slo_by_workflow.items() if (own := slo.soft_latency_p99_s) is not None}
    targets_s = {**latency_targets(plan), **soft_s}
    if not targets_s:
        return None
    predicted = predicted_p99(plan)
    return Judged(plan, {name: predicted[name] for name in plan.deadlines_s if name in targets_s}, targets_s)


def judged_so_far(plan: Plan) -> Judged | None:
    """The same from the simulations of the plan that were made already, without any by the closed form."""
    with limited_to(Clock(lambda: 0.0, 0.0)):
        return judged_latency(plan)


def judge(plan: Plan, *, most: int = SEEDS, whole: bool = False) -> Judged | None:
    """Compare p99 latencies with their hard targets by few simulations; None without a target.

    Times and rates are those of the plan with its margin. Simulations stop once a majority meets the targets or misses
    one, or the first p99 is that far from one. `most`: most simulations. Unless they are to be `whole`, each ends once
    it is certain to miss a target; the p99 stated then is that of the requests so far.
    """
    targets_s = latency_targets(plan)
    if not targets_s:
        return None
    within = stressed(plan)
    seeds, samples = seeds_of(within, most=most), list[_Sample]()
    half = len(seeds) // 2
    for seed in seeds:
        sample = _simulated(within, seed, {} if whole else targets_s)
        if sample is None:
            break
        samples.append(sample)
        shares = [[one.figures[name].latency_p99_s / own_s for one in samples] for name, own_s in targets_s.items()]
        if all(sum(share <= 1.0 for share in own) > half or own[0] * FAR <= 1.0 for own in shares):
            break
        is_clear = all(one.is_whole for one in samples)
        if any(sum(share > 1.0 for share in own) > half or (is_clear and own[0] >= FAR) for own in shares):
            break
    predicted = _predicted(within, samples, len(seeds_of(within)))
    return Judged(plan, {name: predicted[name] for name in targets_s}, targets_s)


def check_latency(plan: Plan, problem: Problem | None = None) -> str | None:
    """Describe the missed p99 latency target with the largest excess; None if all targets are met.

    With the `problem` also one that is missed after a loss that the plan is asked to bear. Makes no more simulations
    than needed to know that the targets are met.
    """
    judged = judge(plan, whole=True)
    if judged is not None and not judged.kept:
        judged = replace(judged, p99=predicted_p99(stressed(plan)))
    if judged is not None and not judged.kept:
        return judged.text
    return None if problem is None else breach_after_loss(problem, plan)


def breach_after_loss(problem: Problem, plan: Plan) -> str | None:
    """The p99 target that the plan would miss after a loss that it is asked to bear, in words; None if it keeps all."""
    for loss, left in plans_after_losses(problem, plan):
        text = "no request is answered" if left is None else check_latency(left)
        if text is not None:
            return f"without {loss}{' ' if left is None else ': '}{text}"
    return None


def plans_after_losses(problem: Problem, plan: Plan) -> Iterator[tuple[Loss, Plan | None]]:
    """Each loss with what is left of the plan, at its rates and with its targets; None if no request is answered."""
    problem, targets = served(problem, plan), plan.slo_by_workflow
    workflows = tuple(replace(one, slo=targets[one.name]) for one in problem.workflows)
    planned = replace(problem, sources=plan.sources, slo=plan.slo, workflows=workflows)
    for loss in judged_losses(plan):
        yield loss, plan_after(planned, plan, loss)
