"""The result of a bisection for the highest sustained rate, from the measurements of the rates that it tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jellybean.bench.result import BenchResult
from jellybean_solver import OutOfTimeError, rate_text


def saturation_result(highest: float, planned: float, probes: Sequence[BenchResult], ended: str = "") -> BenchResult:
    """The best sustained probe of a bisection, with what limited any of them: a probe that fails limits the rate too.

    `highest`, `planned`: the highest sustained rate and that of the plan, in requests per second. `ended`: why the
    search ended before it knew more than a rate that is sustained.
    """
    best = max((probe for probe in probes if probe.sustained), key=lambda probe: probe.rate_per_s)
    late = {name: max(probe.late.get(name, 0.0) for probe in probes) for probe in probes for name in probe.late}
    at_least = "at least " if ended else ""
    verdict = f"highest sustained rate {at_least}{rate_text(highest, 4)}; the plan was made for {rate_text(planned, 4)}"
    return dataclasses.replace(
        best,
        highest_rate_per_s=highest,
        sustained=highest >= planned,
        verdict=verdict if highest >= planned else f"overload: {verdict}",
        late=late,
        deaths=probes[-1].deaths,  # since the first probe
        breaches=(),
        ended_by_time_limit=ended,
    )


def unfinished_result(planned: float, probes: Sequence[BenchResult]) -> BenchResult:
    """The result of a bisection that the time limit ended. OutOfTimeError if no rate was sustained."""
    refused = sorted(probe.rate_per_s for probe in probes if not probe.sustained)
    tried = ", ".join(rate_text(rate, 4) for rate in refused)
    sustained = [probe.rate_per_s for probe in probes if probe.sustained]
    if not sustained:
        raise OutOfTimeError(f"the time limit ended the search; not sustained: {tried}. Allow more time")
    above = f"not sustained: {tried}" if refused else "no higher rate was tried"
    ended = f"the time limit ended the search: {above}; windows of {probes[-1].duration_s:.3g} s"
    return saturation_result(max(sustained), planned, probes, ended)
