"""Measures a plan that is up: its own rates on held-out inputs, or the highest rate that it sustains.

"Sustained" is `jellybean_solver.simulation.sustained`, the definition the simulator predicts by.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jellybean.bench.answer_metrics import is_correct
from jellybean.bench.heldout import HeldOut, held_out
from jellybean.bench.load import OK, UNANSWERED, Sample, Tick, due_times, offer
from jellybean.bench.window import Meters, Progress, Window
from jellybean.planning.simulation import slow_latency_s
from jellybean.serving.client import Client, request_of
from jellybean.serving.errors import ServingError
from jellybean.serving.run_state import RunState, read_state, running_state
from jellybean_agent import PlanView, decode_tensor, read_plan
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import (
    DEFAULT_WINDOW_S,
    RATE_TOLERANCE,
    Arrivals,
    Plan,
    from_document,
    grace_s,
    highest_sustained,
    is_sustained,
)

if TYPE_CHECKING:
    from jellybean.documents import Project


DURATION_S = 30.0
WARMUP_S = 2.0
_SETTLE_S = 10.0  # answers that come later than this are not waited for
_QUIET_S = 30.0
_DEEPEST = 20  # the guess is not halved for ever: a run that answers nothing should be said soon
_OVERLOAD = (UNANSWERED, "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")  # statuses that mean too much was offered
LATE = 0.05  # of a worker's busy time; less does not show in what is measured
_BRACKET = (0.85, 1.15)  # of the predicted rate: where a saturation search begins


@dataclass(frozen=True)
class BenchResult:
    """What was offered and what came back. Latencies count from the due time; unanswered requests as long as awaited.

    `sustained`: nothing failed and at least 98 % was answered in time. `breaches` are targets of the plan that the
    measurement missed, in words. `late`: worker -> share of its busy time that the device it emulates would not have
    taken, so that what was measured is too slow by it.
    """

    plan: str
    workflow: str
    seed: int
    rate_per_s: float
    duration_s: float
    offered: int
    completed: int
    answered_in_time: int
    failed: int
    throughput_per_s: float
    sustained: bool
    verdict: str
    at: float
    latency_p50_s: float | None = None
    latency_p90_s: float | None = None
    latency_p99_s: float | None = None
    latency_mean_s: float | None = None
    accuracy: float | None = None
    cost_usd_per_h: float | None = None
    highest_rate_per_s: float | None = None
    utilisation: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    breaches: tuple[str, ...] = ()
    accuracy_margin: float | None = None  # two standard errors, where fewer answers came than held-out rows

    def to_dict(self) -> dict[str, Any]:
        """A flat record for the report store; figures that were not measured are left out."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        return {**found, "breaches": list(self.breaches), "errors": self.failed}


def bench(
    project: Project,
    *,
    duration_s: float = DURATION_S,
    warmup_s: float = WARMUP_S,
    rate_scale: float = 1.0,
    seed: int = 0,
    progress: Progress = lambda done, total, label: None,
) -> BenchResult:
    """Offer the workflow's own rate and arrivals, times `rate_scale`, to what is up for the project."""
    target = Target(project.directory, held_out(project))
    return target.measure(
        rate_scale * target.data.rate_per_s,
        duration_s=duration_s,
        warmup_s=warmup_s,
        seed=seed,
        whole_round=rate_scale <= 1.0,
        progress=progress,
    )


def saturate(
    project: Project,
    *,
    start_rate_per_s: float | None = None,
    seed: int = 0,
    window_s: float = DEFAULT_WINDOW_S,
    progress: Progress = lambda done, total, label: None,
) -> BenchResult:
    """Find the highest sustained rate by bisection, from a guess such as the simulator's."""
    target = Target(project.directory, held_out(project))
    return target.saturate(start_rate_per_s, seed=seed, window_s=window_s, progress=progress)


class Target:
    """A plan that is up, and the requests to send it."""

    def __init__(self, directory: Path, data: HeldOut) -> None:
        self.data, self._directory = data, directory.resolve()
        self.state: RunState = running_state(self._directory)
        self.view: PlanView = read_plan(self.state.plan_path)
        self.plan: Plan = from_document(json.loads(self.state.plan_path.read_text(encoding="utf-8")))
        if data.labels is not None and len(self.view.sinks) != 1:
            raise ServingError(f"labels need one sink to be compared with; the plan has {', '.join(self.view.sinks)}")
        self.meters = Meters(self._directory, self.state, self.view)
        self.slow_latency_s = slow_latency_s(self.plan)
        self._requests = [request_of(data.request(row)).SerializeToString() for row in range(data.rows)]

    def measure(
        self,
        rate_per_s: float,
        *,
        duration_s: float = DURATION_S,
        warmup_s: float = WARMUP_S,
        seed: int = 0,
        arrivals: Arrivals | None = None,
        settle_s: float = _SETTLE_S,
        whole_round: bool = False,
        progress: Progress = lambda done, total, label: None,
    ) -> BenchResult:
        """Offer `rate_per_s` for `duration_s` after a warm-up that does not count.

        Answers later than `settle_s` after the end are not waited for, unless they would still be in time. With
        `whole_round` the accuracy is that of all held-out rows: those that the window has no time for are sent after
        it, where that takes no longer than the window.
        """
        if not (rate_per_s > 0 and duration_s > 0 and warmup_s >= 0):
            raise ServingError(f"a bench needs a rate and a duration above 0, not {rate_per_s}/s for {duration_s} s")
        kind = arrivals or self.data.arrivals
        grace = grace_s(self.slow_latency_s, rate_per_s, duration_s, kind)
        warming = due_times(rate_per_s, warmup_s, kind, seed + 1)
        counted = due_times(rate_per_s, duration_s, kind, seed)
        due = warming + [warmup_s + time for time in counted]
        # The counted part begins a round of its own, so that whole rounds weigh every held-out row alike.
        rows = _rows(self.data.rows, len(warming), seed + 1) + _rows(self.data.rows, len(counted), seed)
        window = Window(self.meters, warmup_s, warmup_s + duration_s, progress)
        offered = self.offer(due, rows, settle_s=max(grace, settle_s), end_s=warmup_s + duration_s, tick=window.tick)
        samples = [sample for sample in asyncio.run(offered) if sample.due_s >= warmup_s]
        rest = self._rest(samples, rate_per_s, duration_s, progress) if whole_round else []
        return self._result(samples, rest, rate_per_s, warmup_s, duration_s, grace, seed, window)

    def _rest(self, samples: Sequence[Sample], rate_per_s: float, most_s: float, progress: Progress) -> list[Sample]:
        """Answers to the held-out rows that `samples` leave out; none where they would take too long or fail."""
        rows = sorted(set(range(self.data.rows)) - {sample.row for sample in samples})
        due = [index / rate_per_s for index in range(len(rows))]
        failing = any(sample.status != OK for sample in samples)
        if self.data.labels is None or not rows or failing or len(rows) > rate_per_s * most_s:
            return []
        end_s = len(rows) / rate_per_s

        async def tick(elapsed_s: float) -> None:
            progress(min(elapsed_s, end_s), end_s, "the other held-out inputs, for the accuracy")

        return asyncio.run(self.offer(due, rows, settle_s=_SETTLE_S, end_s=0.0, tick=tick))

    def saturate(
        self,
        start_rate_per_s: float | None = None,
        *,
        seed: int = 0,
        window_s: float = DEFAULT_WINDOW_S,
        tolerance: float = RATE_TOLERANCE,
        progress: Progress = lambda done, total, label: None,
    ) -> BenchResult:
        """Bisect the highest sustained rate with evenly spaced requests."""
        guess = start_rate_per_s or self.data.rate_per_s
        best: list[BenchResult] = []
        probes = 0

        def once(rate: float) -> BenchResult:
            nonlocal probes
            probes += 1
            progress(probes - 1, max(7, probes), f"{rate:.4g}/s")
            result = self.measure(
                rate,
                duration_s=window_s,
                warmup_s=1.0,
                seed=seed,
                arrivals=Arrivals.PERIODIC,
                settle_s=0.0,
            )
            self._await_quiet()
            return result

        def probe(rate: float) -> bool:
            if rate < guess / _DEEPEST:
                raise ServingError(f"not even {rate * 2:.3g}/s is sustained: see `jellybean bench` for what fails")
            result = once(rate)
            if not result.sustained and rate < guess:  # a stall of the machine is no overload: look again
                result = once(rate)
            if result.sustained:
                best.append(result)
            return result.sustained

        highest = highest_sustained(probe, _BRACKET[0] * guess, _BRACKET[1] * guess, tolerance)
        progress(probes, probes, "done")
        return self._saturated(highest, best)

    async def offer(
        self, due_s: Sequence[float], rows: Sequence[int], *, settle_s: float, end_s: float, tick: Tick | None = None
    ) -> list[Sample]:
        """Send row `rows[i]` of the held-out requests at `due_s[i]`."""
        address = self.state.gateway_address
        return await offer(address, self._requests, rows, due_s, settle_s=settle_s, end_s=end_s, tick=tick)

    def _saturated(self, highest: float, best: Sequence[BenchResult]) -> BenchResult:
        last = max(best, key=lambda result: result.rate_per_s)
        declared = self.data.rate_per_s
        verdict = f"highest sustained rate {highest:.4g}/s; the workflow's own is {declared:.4g}/s"
        return BenchResult(
            **{
                **{name: getattr(last, name) for name in BenchResult.__dataclass_fields__},
                "highest_rate_per_s": highest,
                "sustained": highest >= declared,
                "verdict": verdict if highest >= declared else f"overload: {verdict}",
                "breaches": (),
            }
        )

    def _await_quiet(self) -> None:
        """Between probes nothing of the last one may be in hand any more."""
        until = time.monotonic() + _QUIET_S
        with Client(self.state.gateway_address) as client:
            while client.status().requests_in_hand and time.monotonic() < until:
                time.sleep(0.05)

    @property
    def plan_hash(self) -> str:
        """The name of the plan that is up."""
        return self.view.hash

    def _result(
        self,
        samples: Sequence[Sample],
        rest: Sequence[Sample],
        rate_per_s: float,
        warmup_s: float,
        duration_s: float,
        grace: float,
        seed: int,
        window: Window,
    ) -> BenchResult:
        fine = [sample for sample in samples if sample.status == OK]
        failed = [sample for sample in samples if sample.status not in (OK, UNANSWERED)]
        end_s = warmup_s + duration_s
        in_time = sum(sample.finished_s <= end_s + grace for sample in fine)
        by_end = sum(sample.finished_s <= end_s for sample in fine)
        sustained = is_sustained(len(samples), in_time, len(failed))
        awaited = [sample.latency_s for sample in samples if sample.status in (OK, UNANSWERED)]
        p50, p90, p99 = np.percentile(awaited, [50, 90, 99]).tolist() if awaited else (None, None, None)
        reasons = Counter(f"{s.status}: {s.reason}" for s in samples if s.status != OK)
        answers = [*fine, *(sample for sample in rest if sample.status == OK)]
        accuracy = self._accuracy(answers)
        cost = window.cost_usd_per_h(self.plan)
        return BenchResult(
            plan=self.view.hash,
            workflow=self.view.name,
            seed=seed,
            rate_per_s=rate_per_s,
            duration_s=duration_s,
            offered=len(samples),
            completed=len(fine),
            answered_in_time=in_time,
            failed=len(failed),
            throughput_per_s=by_end / duration_s,
            sustained=sustained,
            verdict=_verdict(rate_per_s, len(samples), in_time, len(failed), reasons, sustained),
            at=time.time(),
            latency_p50_s=p50,
            latency_p90_s=p90,
            latency_p99_s=p99,
            latency_mean_s=float(np.mean(awaited)) if awaited else None,
            accuracy=accuracy,
            cost_usd_per_h=cost,
            utilisation=window.utilisation(),
            late=window.late(),
            reasons=dict(reasons.most_common(10)),
            breaches=self._breaches(p99, accuracy, self._margin(accuracy, len(answers)), cost),
            accuracy_margin=self._margin(accuracy, len(answers)) or None,
        )

    def _accuracy(self, fine: Sequence[Sample]) -> float | None:
        """Percent of the answers that match their labels; every held-out row that was sent counts alike."""
        labels = self.data.labels
        if labels is None or not fine:
            return None
        (sink,) = self.view.sinks
        right: dict[int, list[bool]] = {}
        for sample in fine:
            response = gateway_pb2.InferResponse.FromString(sample.answer)
            correct = is_correct(self.data.metric, decode_tensor(response.outputs[sink]), labels[sample.row])
            right.setdefault(sample.row, []).append(correct)
        return 100.0 * float(np.mean([np.mean(answers) for answers in right.values()]))

    def _deaths(self) -> Iterator[tuple[str, str]]:
        """What died since this began, and what became of it."""
        now = read_state(self._directory)
        for before in self.state.processes:
            after = next((process for process in now.processes if process.name == before.name), None) if now else None
            if after is None or after.process() is None:
                yield before.name, "is gone: the plan is served without it"
            elif after.restarts > before.restarts:
                yield before.name, f"died and was started again, {after.restarts - before.restarts} times"

    def _margin(self, accuracy: float | None, answers: int) -> float:
        """Two standard errors of an accuracy of fewer answers than held-out rows, which are a sample."""
        if accuracy is None or answers >= self.data.rows:
            return 0.0
        return 2.0 * math.sqrt(accuracy * (100.0 - accuracy) / max(answers, 1))

    def _breaches(
        self, p99_s: float | None, accuracy: float | None, margin: float, cost: float | None
    ) -> tuple[str, ...]:
        slo = self.plan.slo
        found = [f"{name} {what}" for name, what in self._deaths()]
        if slo.latency_p99_s is not None and p99_s is not None and p99_s > slo.latency_p99_s:
            found.append(f"latency p99 {p99_s * 1e3:.0f} ms is above the target of {slo.latency_p99_s * 1e3:.0f} ms")
        if slo.accuracy is not None and accuracy is not None and accuracy < slo.accuracy - margin:
            found.append(f"accuracy {accuracy:.2f} % is below the target of {slo.accuracy:g} %")
        if slo.budget_usd_per_h is not None and cost is not None and cost > slo.budget_usd_per_h:
            found.append(f"{cost:.4g} USD/h is above the budget of {slo.budget_usd_per_h:g} USD/h")
        return tuple(found)


def lateness(late: Mapping[str, float]) -> str | None:
    """In words, where this machine could not keep the pace of the devices that it emulates; None where it could."""
    share = max(late.values(), default=0.0)
    if share <= LATE:
        return None
    worst = max(late, key=lambda name: late[name])
    return (
        f"this machine was too slow or too busy to emulate the fleet: {share:.0%} of the time that {worst} was busy, "
        "its device would have been done, so measured latencies are too high; close other programs and measure again"
    )


def _rows(rows: int, count: int, seed: int) -> list[int]:
    """Held-out rows in a random order, each as often as any other."""
    generator = np.random.default_rng(seed)
    found: list[int] = []
    while len(found) < count:
        found += generator.permutation(rows).tolist()
    return found[:count]


def _verdict(
    rate_per_s: float, offered: int, in_time: int, failed: int, reasons: Mapping[str, int], sustained: bool
) -> str:
    counts = f"{in_time} of {offered} requests answered in time at {rate_per_s:.4g}/s, {failed} failed"
    if sustained:
        return f"kept up: {counts}"
    faults = {reason: count for reason, count in reasons.items() if not reason.startswith(_OVERLOAD)}
    if faults:
        return f"failures: {counts}; most often {max(faults, key=lambda reason: faults[reason])}"
    return f"overload: {counts}"
