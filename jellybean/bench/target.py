"""A running plan under load: one measurement at a given rate, and the highest sustained rate by bisection.

A rate is sustained by the definition in `jellybean_solver.simulation.sustained`, which the simulator uses too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from jellybean.answer_metrics import correctness
from jellybean.bench.heldout import HeldOut
from jellybean.bench.load import OK, UNANSWERED, Sample, Tick, due_times, offer
from jellybean.bench.load_settings import LEAST_WINDOW_S, SETTLE_S, WARMUP_S, LoadSettings, at_most
from jellybean.bench.meters import GatewayMeters, Meters, RunMeters
from jellybean.bench.result import BenchResult, Counts, verdict_of
from jellybean.bench.saturation import saturation_result, unfinished_result
from jellybean.bench.shown_answers import JudgedAnswer, accuracy_of, shown_answers
from jellybean.bench.stream_rows import StreamRows
from jellybean.bench.window import Progress, Window
from jellybean.display import formats
from jellybean.planning.simulation import slow_latency_s
from jellybean.serving.client import Client, request_of, served_document
from jellybean.serving.endpoint import Endpoint, owner_endpoint
from jellybean.serving.errors import ServingError
from jellybean.serving.outcomes import OutcomeKind, outcome_kind
from jellybean.serving.run_state import running_state
from jellybean_agent import Array, PlanView, decode_tensor, plan_part, plan_view, workflow_views
from jellybean_protos.gateway.v1 import gateway_pb2
from jellybean_solver import (
    RATE_TOLERANCE,
    Arrivals,
    OutOfTimeError,
    Plan,
    default_window_s,
    distinct_durations,
    distinct_usd,
    from_document,
    grace_s,
    highest_sustained,
    is_sustained,
    nearest_rank,
    rate_text,
    work_limit,
)

_SHOWN_REASONS = 3
_QUIET_S = 30.0  # longest wait for in-flight requests to finish between two probes of a bisection
_MIN_PART = 20  # a bisection gives up at rates below the first guess / _MIN_PART
# First guess of a bisection, at most: what a gateway and a client on two processors carry (docs/benchmarks.md:
# serving_overhead). A lower one costs a window for each doubling, a higher one overloads the machine at once.
MOST_GUESS_PER_S = 2_000.0
_BRACKET = (0.85, 1.15)  # first interval of a bisection, as multiples of the first guess
WINDOWS = 8  # that a bisection should have under a time limit (docs/cli.md)


def no_progress(_done: float, _total: float, _label: str) -> None:
    """Progress callback that does nothing."""


class Target:
    """A running plan and the held-out requests to send it."""

    def __init__(self, meters: Meters, plan: Plan, data: HeldOut, served: Plan | None = None) -> None:
        """`served`: the whole plan, if `plan` is the part of one of its workflows.

        ServingError if the held-out requests do not fit the plan: other sources, or no answer for the labels.
        """
        self.served = served or plan
        self.meters, self.plan, self.data = meters, plan, data
        self.view = meters.view
        if (needed := set(self.view.source_outputs)) != data.inputs.keys():
            raise ServingError(
                f"the plan that is served has other sources ({', '.join(sorted(needed))}) than the documents "
                f"({', '.join(sorted(data.inputs))}): plan and apply again first"
            )
        self.labelled_sink = _labelled_sink(self.view.sinks, data)
        self.slow_latency_s = slow_latency_s(plan)
        self._streams = _stream_rows(plan, data)
        workflow = self.view.workflow
        self._requests = [
            request_of(data.request(row), workflow=workflow).SerializeToString() for row in range(data.rows)
        ]

    @classmethod
    def of(cls, directory: Path, data: HeldOut, endpoint: Endpoint | None = None, workflow: str = "") -> Self:
        """The plan that a gateway serves, by default that of the project's run; of several workflows one of them.

        NotRunningError if nothing is up, ServingError if the plan has no such workflow.
        """
        directory = directory.resolve()
        state = running_state(directory) if endpoint is None else None
        called = replace(endpoint or owner_endpoint(directory), workflow=workflow)
        _require_started(called)
        served = served_document(called)
        is_emulated = state is not None and not state.peers
        if workflow:
            view = _part_view(served, workflow)
            plan = from_document(plan_part(served, workflow))
            return cls(GatewayMeters(called, view, is_emulated=is_emulated), plan, data, from_document(served))
        plan, view = from_document(served), plan_view(served)
        if state is not None and is_emulated:
            return cls(RunMeters(directory, state, view), plan, data)
        return cls(GatewayMeters(called, view), plan, data)

    @property
    def planned_per_s(self) -> float:
        """Requests per second that the plan was made for."""
        return self.view.figures.rate_per_s

    @property
    def plan_hash(self) -> str:
        """Hash of the running plan."""
        return self.view.hash

    @property
    def warm_up_s(self) -> float:
        """How long requests are sent before what counts: until then answers come at less than the rate."""
        return max(WARMUP_S, self.slow_latency_s)

    def in_time(self, settings: LoadSettings, rate_per_s: float) -> LoadSettings:
        """The settings with the warm-up, the window and the wait for answers that the time limit of the work leaves.

        OutOfTimeError if it leaves less than `LEAST_WINDOW_S`.
        """
        arrivals = settings.arrivals or self.data.arrivals
        return settings.in_time(grace_s(self.slow_latency_s, rate_per_s, settings.duration_s, arrivals))

    def measure(
        self, rate_per_s: float, settings: LoadSettings = LoadSettings(), progress: Progress = no_progress
    ) -> BenchResult:
        """Offer `rate_per_s` and measure. ServingError if the served plan is replaced or stopped before the end."""
        if not (rate_per_s > 0 and settings.duration_s > 0 and settings.warmup_s >= 0):
            raise ServingError(
                f"a bench needs a rate and a duration above 0, not {rate_per_s}/s for {settings.duration_s} s"
            )
        arrivals, seed = settings.arrivals or self.data.arrivals, settings.seed
        grace = grace_s(self.slow_latency_s, rate_per_s, settings.duration_s, arrivals)
        due = self.due_s(rate_per_s, settings)
        warming = [time for time in due if time < settings.warmup_s]
        # Warm-up and counted window use separate rounds (see `_rows`), so that every held-out row counts equally often.
        rows = _rows(self.data.rows, len(warming), seed + 1) + _rows(self.data.rows, len(due) - len(warming), seed)
        places: list[bytes] = []
        if self._streams is not None:
            planned = self.plan.sources[0].streams * self.plan.sites.get(self.plan.sources[0].tier, 1)
            live = max(1, round(planned * rate_per_s / self.planned_per_s))
            rows, places = self._streams.draw(len(due), live)
        window = Window(self.meters, settings.warmup_s, settings.end_s, progress)
        settle_s = max(grace, settings.settle_s)
        offered = self.offer(due, rows, settle_s=settle_s, end_s=settings.end_s, tick=window.tick, places=places)
        every = asyncio.run(offered)
        samples = _of_window(every, settings)
        if window.fault is not None:
            raise ServingError(f"{window.fault}; {_outcomes_text(samples)}") from window.fault
        limit_s = at_most(settings.duration_s)
        rest = self._rest(samples, rate_per_s, limit_s, progress) if settings.all_rows else []
        result = self._result(rate_per_s, settings, grace, every, rest, window)
        return dataclasses.replace(result, uncounted=len(warming) + len(rest))

    def due_s(self, rate_per_s: float, settings: LoadSettings) -> list[float]:
        """When the requests of a measurement are due, the warm-up's first."""
        arrivals = settings.arrivals or self.data.arrivals
        warming = due_times(rate_per_s, settings.warmup_s, arrivals, settings.seed + 1)
        counted = due_times(rate_per_s, settings.duration_s, arrivals, settings.seed)
        return warming + [settings.warmup_s + time for time in counted]

    async def offer(
        self,
        due_s: Sequence[float],
        rows: Sequence[int],
        *,
        settle_s: float,
        end_s: float,
        tick: Tick | None = None,
        places: Sequence[bytes] = (),
    ) -> list[Sample]:
        """Send row `rows[i]` of the held-out requests at `due_s[i]` seconds; other arguments as in `load.offer`."""
        endpoint = self.meters.endpoint
        return await offer(
            endpoint, self._requests, rows, due_s, settle_s=settle_s, end_s=end_s, tick=tick, places=places
        )

    def _rest(self, samples: Sequence[Sample], rate_per_s: float, limit_s: float, progress: Progress) -> list[Sample]:
        """Send the held-out rows that are missing in `samples`; returns their samples.

        Sends nothing without labels, to streams, if any request failed, or if it would take longer than `limit_s`.
        """
        rows = sorted(set(range(self.data.rows)) - {sample.row for sample in samples})
        due = [index / rate_per_s for index in range(len(rows))]
        failing = any(sample.status != OK for sample in samples)
        if (
            self.data.labels is None
            or self._streams is not None
            or not rows
            or failing
            or len(rows) > rate_per_s * limit_s
        ):
            return []
        end_s = len(rows) / rate_per_s

        async def tick(elapsed_s: float) -> None:
            progress(min(elapsed_s, end_s), end_s, "the other held-out inputs, for the accuracy")

        return asyncio.run(self.offer(due, rows, settle_s=at_most(SETTLE_S), end_s=0.0, tick=tick))

    def _result(
        self,
        rate_per_s: float,
        settings: LoadSettings,
        grace: float,
        every: Sequence[Sample],
        rest: Sequence[Sample],
        window: Window,
    ) -> BenchResult:
        samples = _of_window(every, settings)
        answered = [sample for sample in samples if sample.status == OK]
        failed = [sample for sample in samples if sample.status not in (OK, UNANSWERED)]
        end_s = settings.end_s
        in_time = sum(sample.finished_s <= end_s + grace for sample in answered)
        later = sum(sample.finished_s >= end_s for sample in answered)
        in_window = sum(sample.status == OK and settings.warmup_s <= sample.finished_s < end_s for sample in every)
        sustained = is_sustained(len(samples), in_time, len(failed))
        latencies = [sample.latency_s for sample in samples if sample.status in (OK, UNANSWERED)]
        p50, p90, p99 = (nearest_rank(sorted(latencies), share) if latencies else None for share in (0.50, 0.90, 0.99))
        reasons = Counter(f"{s.status}: {s.reason}" for s in samples if s.status != OK)
        answers = [*answered, *(sample for sample in rest if sample.status == OK)]
        judged = self._judged(answers)
        accuracy = accuracy_of(judged)
        margin = self._margin(accuracy, len(answers))
        cost = window.cost_usd_per_h(self.plan)
        deaths = tuple(self.meters.deaths())
        counts = Counts(len(samples), len(answered), in_time, len(failed), sustained, grace)
        return BenchResult(
            plan=self.view.hash,
            workflow=self.view.served_name,
            seed=settings.seed,
            rate_per_s=rate_per_s,
            duration_s=settings.duration_s,
            offered=len(samples),
            completed=len(answered),
            answered_in_time=in_time,
            failed=len(failed),
            throughput_per_s=in_window / settings.duration_s,
            sustained=sustained,
            verdict=verdict_of(rate_per_s, counts, reasons),
            at=time.time(),
            latency_p50_s=p50,
            latency_p90_s=p90,
            latency_p99_s=p99,
            latency_mean_s=float(np.mean(latencies)) if latencies else None,
            accuracy=accuracy,
            cost_usd_per_h=cost,
            utilisation=window.utilisation(),
            late=window.late(),
            machine_cpu=window.machine_cpu(),
            outcomes=_outcomes(samples),
            reasons=dict(reasons.most_common(10)),
            deaths=deaths,
            breaches=(*deaths, *_breaches(self.plan, p99, accuracy, margin, cost)),
            accuracy_margin=margin or None,
            answered_in_window=in_window,
            answered_of_warmup=in_window - (len(answered) - later),
            answered_later=later,
            warmup_s=settings.warmup_s,
            joined=not self.meters.is_emulated,
            answers=shown_answers(self.data, judged),
        )

    def _judged(self, answers: Sequence[Sample]) -> tuple[JudgedAnswer, ...]:
        """The answers by held-out row; every row has equal weight, however often it was sent."""
        labels, rows = self.data.labels, dict[int, list[float]]()
        first: dict[int, dict[str, Array]] = {}
        for sample in answers:
            response = gateway_pb2.InferResponse.FromString(sample.answer)
            outputs = {sink: decode_tensor(response.outputs[sink]) for sink in self.view.sinks}
            first.setdefault(sample.row, outputs)
            if labels is not None:
                answer = outputs[self.labelled_sink]
                rows.setdefault(sample.row, []).append(correctness(self.data.metric, answer, labels[sample.row]))
        return tuple(
            JudgedAnswer(row, outputs, float(np.mean(rows[row])) if row in rows else None)
            for row, outputs in first.items()
        )

    def _margin(self, accuracy: float | None, answers: int) -> float:
        """Two standard errors of the accuracy, in percentage points; 0 if all held-out rows were answered."""
        if accuracy is None or answers >= self.data.rows:
            return 0.0
        return 2.0 * math.sqrt(accuracy * (100.0 - accuracy) / max(answers, 1))

    def saturate(
        self,
        start_rate_per_s: float | None = None,
        *,
        seed: int = 0,
        window_s: float | None = None,
        tolerance: float = RATE_TOLERANCE,
        progress: Progress = no_progress,
    ) -> BenchResult:
        """Measure the highest sustained rate of evenly spaced requests, by bisection.

        `start_rate_per_s`: first guess; the planned rate by default. `window_s`: of each rate that is tried; by default
        as long as simulations have it. `tolerance`: relative precision. A guess above `MOST_GUESS_PER_S` is one of
        workers alone, which says nothing of the gateway: the search then begins there, or at the planned rate. At the
        time limit of the work the result has the highest rate so far, and says which ones were not sustained;
        OutOfTimeError if there is none.
        """
        guess = min(start_rate_per_s or self.planned_per_s, max(MOST_GUESS_PER_S, self.planned_per_s))
        window_s = window_s or default_window_s(guess, self.slow_latency_s)
        if (left_s := work_limit().left()) is not None:
            window_s = min(window_s, max(LEAST_WINDOW_S, left_s / WINDOWS))
        settings = LoadSettings(window_s, 1.0, seed, Arrivals.PERIODIC, settle_s=0.0)
        probes: list[BenchResult] = []

        def measure(rate: float) -> BenchResult:
            if self.in_time(settings, rate).duration_s < window_s:
                raise OutOfTimeError("no window was measured in the time allowed; allow more time")
            progress(len(probes), max(7, len(probes) + 1), rate_text(rate, 4))
            probes.append(self.measure(rate, settings))
            self._await_quiet()
            return probes[-1]

        def probe(rate: float) -> bool:
            if rate < guess / _MIN_PART:
                raise ServingError(
                    f"not even {rate_text(rate * 2, 3)} is sustained: see `jellybean bench` for what fails"
                )
            result = measure(rate)
            if not result.sustained and rate < guess:  # measure again: it may have been a stall of this machine
                result = measure(rate)
            return result.sustained

        try:
            highest = highest_sustained(probe, _BRACKET[0] * guess, _BRACKET[1] * guess, tolerance)
        except OutOfTimeError:
            if not probes:
                raise
            return unfinished_result(self.planned_per_s, probes)
        progress(len(probes), len(probes), "done")
        return saturation_result(highest, self.planned_per_s, probes)

    def _await_quiet(self) -> None:
        """Wait until no request is in flight, at most `_QUIET_S` seconds."""
        until = time.monotonic() + at_most(_QUIET_S)
        with Client.at(self.meters.endpoint) as client:
            while client.status().requests_in_hand and time.monotonic() < until:
                time.sleep(0.05)


def _of_window(samples: Sequence[Sample], settings: LoadSettings) -> list[Sample]:
    """The requests that were due in the counted window."""
    return [sample for sample in samples if sample.due_s >= settings.warmup_s]


def _outcomes_text(samples: Sequence[Sample]) -> str:
    """How many requests were answered, and how the others ended."""
    counts = Counter("answered" if s.status == OK else f"{s.status}: {s.reason}" for s in samples)
    answered = counts.pop("answered", 0)
    others = "".join(f", {number} ended with {text}" for text, number in counts.most_common(_SHOWN_REASONS))
    return f"of {formats.count(len(samples), 'request')} that were sent meanwhile {answered} were answered{others}"


def _require_started(endpoint: Endpoint) -> None:
    """ServingError while no route has had all its workers: every request would be refused."""
    with Client.at(endpoint) as client:
        status = client.status()
    if status.state == "starting":
        waiting = sorted(name for name, state in status.workers.items() if state != "ready")
        why = "requests are refused until a route has all its workers"
        raise ServingError(f"nothing was measured: {why}; waiting for {', '.join(waiting)}")


def _breaches(
    plan: Plan, p99_s: float | None, accuracy: float | None, margin: float, cost_usd_per_h: float | None
) -> Iterator[str]:
    """One sentence per target of the plan that the measurement missed.

    `margin`: accuracies below the target by no more than this (percentage points) count as met.
    """
    slo, least = plan.slo, plan.slo.accuracy_of_plan
    if slo.latency_p99_s is not None and p99_s is not None and p99_s > slo.latency_p99_s:
        measured, target = distinct_durations(p99_s, slo.latency_p99_s)
        yield f"latency p99 {measured} is above the target of {target}"
    if least is not None and accuracy is not None and accuracy < least - margin:
        yield f"accuracy {accuracy:.2f} % is below the target of {least:g} %"
    if slo.budget_usd_per_h is not None and cost_usd_per_h is not None and cost_usd_per_h > slo.budget_usd_per_h:
        costs, allowed = distinct_usd(cost_usd_per_h, slo.budget_usd_per_h)
        yield f"{costs} USD/h is above the budget of {allowed} USD/h"


def _outcomes(samples: Sequence[Sample]) -> dict[str, int]:
    """Requests by outcome; those without an answer by the end were cancelled."""
    counts = Counter(
        OutcomeKind.CANCELLED if sample.status == UNANSWERED else outcome_kind(grpc.StatusCode[sample.status])
        for sample in samples
    )
    return {kind.value: counts[kind] for kind in OutcomeKind}


def _labelled_sink(sinks: Sequence[str], data: HeldOut) -> str:
    """The sink whose answers the labels are for; the first without labels. ServingError if the plan has none such."""
    if data.labels is None or (data.labels_of is None and len(sinks) == 1):
        return sinks[0]
    if data.labels_of is None:
        raise ServingError(
            f"labels are for one answer, but {', '.join(sinks)} answer: write `labels_of:` into workflow.yaml"
        )
    if data.labels_of not in sinks:
        raise ServingError(
            f"the labels are for answers of {data.labels_of}, but the plan that is served answers with "
            f"{', '.join(sinks)}: plan and apply again first"
        )
    return data.labels_of


def _part_view(document: Mapping[str, Any], workflow: str) -> PlanView:
    """The view of one of the workflows of a plan that is served. ServingError if it has none of this name."""
    views = workflow_views(document)
    if workflow not in views:
        raise ServingError(f"the plan that is served has no workflow {workflow}, but {', '.join(views)}")
    return views[workflow]


def _stream_rows(plan: Plan, data: HeldOut) -> StreamRows | None:
    """The streams to send if an operator of the plan has a state. ServingError if the data do not say their streams."""
    if not any(operator.state for operator in plan.operators):
        return None
    if data.stream_ids is None:
        raise ServingError("an operator keeps a state by stream: write stream_ids: data/heldout.npz#streams")
    return StreamRows(data.stream_ids[: data.rows])


def _rows(rows: int, count: int, seed: int) -> list[int]:
    """Indices of `count` held-out rows, in rounds; each round has all `rows` indices once, in a random order."""
    generator = np.random.default_rng(seed)
    found: list[int] = []
    while len(found) < count:
        found += generator.permutation(rows).tolist()
    return found[:count]
