"""Overload in words: what is offered beside what the plan was made for, and the command that plans for it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents import load_project, override_options
from jellybean.errors import DocumentError
from jellybean.quantities import DURATION, RATE, format_quantity
from jellybean_agent import PlanFigures
from jellybean_solver import rate_text

ABOVE_PLAN = 1.1  # offered / planned rate from which on it is overload; a plan has spare capacity for less
# Standard deviations of a Poisson count by which more requests than planned must arrive, too: it decides in short
# windows. At the planned rate, chance exceeds 3 in one window of 700.
NOISE = 3.0
_NOISE_WITH_SYMPTOM = 1.0  # late or shed requests or a missed p99 have a cause: this is enough evidence for it
FAILED_SHARE = 0.01  # share of the requests; single late ones have a cause of their own, as a client's short deadline
_DIGITS = 2  # significant digits to which the proposed rates are rounded up


@dataclass(frozen=True, slots=True)
class Load:
    """A window of a run beside its plan: valid requests that arrived, late and shed ones per second, p99 in seconds.

    None: not measured, or the plan has no such target.
    """

    window_s: float
    offered_per_s: float
    planned_per_s: float
    late_per_s: float
    shed_per_s: float
    p99_s: float | None
    target_p99_s: float | None

    @property
    def ratio(self) -> float:
        """Offered rate / planned rate."""
        return self.offered_per_s / self.planned_per_s if self.planned_per_s else 0.0

    @property
    def misses_p99(self) -> bool:
        return self.p99_s is not None and self.target_p99_s is not None and self.p99_s > self.target_p99_s

    @property
    def is_above_plan(self) -> bool:
        """True if more requests arrived than planned: than chance explains, and without a symptom by `ABOVE_PLAN`."""
        has_symptom = self.misses_p99 or self.is_much(self.late_per_s) or self.is_much(self.shed_per_s)
        noise, least_ratio = (_NOISE_WITH_SYMPTOM, 1.0) if has_symptom else (NOISE, ABOVE_PLAN)
        planned = self.planned_per_s * self.window_s
        above = self.offered_per_s * self.window_s > planned + noise * math.sqrt(planned)
        return planned > 0 and above and self.ratio > least_ratio

    def is_much(self, failed_per_s: float) -> bool:
        """True if so many late or shed requests per second are more than single ones."""
        return failed_per_s > FAILED_SHARE * self.offered_per_s


@dataclass(frozen=True, slots=True)
class Overload:
    """What is too much, in words. `command`: plans for the offered rate.

    None if no more is offered than planned (`is_above_plan` False), or if the project of the gateway is elsewhere.
    """

    reasons: tuple[str, ...]
    is_above_plan: bool
    command: str | None


def find_overload(
    load: Load, figures: PlanFigures | None, directory: Path | None, workflow: str = ""
) -> Overload | None:
    """The overload in a window; None if there is none. `directory`: the project, for the command.

    `workflow`: which one of several the figures are of.
    """
    reasons = tuple(_reasons(load))
    if not reasons:
        return None
    command = None
    if load.is_above_plan and figures is not None and directory is not None:
        command = replan_command(directory, figures, load.ratio, workflow)
    return Overload(reasons, load.is_above_plan, command)


def _reasons(load: Load) -> Iterator[str]:
    if load.is_above_plan:
        yield f"{rate_text(load.offered_per_s, 3)} offered, planned for {rate_text(load.planned_per_s, 3)}"
    if load.p99_s is not None and load.target_p99_s is not None and load.misses_p99:
        yield f"p99 {seconds(load.p99_s)}, target {seconds(load.target_p99_s)}"
    if load.is_much(load.shed_per_s):
        yield f"{rate_text(load.shed_per_s, 3)} shed"
    if load.is_much(load.late_per_s):
        yield f"{rate_text(load.late_per_s, 3)} late"


def seconds(value_s: float) -> str:
    """A latency as documents have it: 340 ms, 6.3 s."""
    return format_quantity(DURATION, value_s, digits=3)


def replan_command(directory: Path, figures: PlanFigures, ratio: float, workflow: str = "") -> str:
    """The command that re-plans the running plan for `ratio` times its rates, with its targets and other options.

    `workflow`: the only one of several whose rates grow; targets of several are those of the documents and options.
    """
    own = f"{workflow}." if workflow else ""
    rates = {f"{own}sources.{name}.rate": rate * ratio for name, rate in figures.source_rates_per_s.items()}
    kept = [text for text in figures.overrides if _path(text) not in rates]
    settings = [f"{path}={_rounded_up(rate)}" for path, rate in rates.items()]
    options = override_options([*kept, *settings, *(() if workflow else _other_targets(directory, figures))])
    return f"jellybean plan {shlex.quote(str(directory))} --from running{options}{' --stale' * figures.is_stale}"


def _path(override: str) -> str:
    return override.partition("=")[0].strip().removeprefix("workflow.")


def _rounded_up(rate_per_s: float) -> str:
    step = 10.0 ** (math.floor(math.log10(rate_per_s)) + 1 - _DIGITS)
    return format_quantity(RATE, math.ceil(rate_per_s / step - 1e-9) * step, digits=_DIGITS + 1)


def _other_targets(directory: Path, figures: PlanFigures) -> Iterator[str]:
    """Overrides for the targets of the plan that differ from those of the documents with its own overrides."""
    try:
        slo = load_project(directory, figures.overrides, profiles=False, files=False).workflow.slo
    except DocumentError:  # the command will name the mistake
        return
    if figures.slo_accuracy != slo.accuracy:
        yield f"slo.accuracy={_or_null(figures.slo_accuracy, '{:g}')}"
    if not figures.has_soft_mean and figures.slo_mean_accuracy != slo.mean_accuracy:
        yield f"slo.mean_accuracy={_or_null(figures.slo_mean_accuracy, '{:g}')}"
    if not figures.has_soft_latency and figures.slo_latency_p99_s != slo.latency_p99_s:
        value = figures.slo_latency_p99_s
        yield f"slo.latency_p99={'null' if value is None else format_quantity(DURATION, value)}"
    if figures.slo_budget_usd_per_h != slo.budget_usd_per_h:
        yield f"slo.budget={_or_null(figures.slo_budget_usd_per_h, '{:g} USD/h')}"


def _or_null(value: float | None, form: str) -> str:
    return "null" if value is None else form.format(value)
