"""Plans by time: a plan for each period of a trace, as text, JSON, picture and files."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from jellybean.display import formats
from jellybean.display.pictures import SERIES
from jellybean.display.tables import figures_table, indented
from jellybean.display.time_picture import Panel, Steps, save_time_picture
from jellybean.documents import (
    AnyProject,
    MultiWorkflowProject,
    build_problem,
    rates_of_sources,
    with_settings,
    worker_counts,
)
from jellybean.documents.rate_trace import RateTraceFile, read_rate_trace
from jellybean.errors import InfeasibleError, InputError
from jellybean.planning.plan_file import plan_options, write_plan_file
from jellybean.planning.predicted_latency import latency_targets, simulated_p99_s
from jellybean.planning.project_plan import plan_project
from jellybean.planning.searched_objectives import stated_objective
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.soft_targets import latency_penalty, soft_targets
from jellybean.report.plans.selections import selection_lines, selections_json
from jellybean_solver import (
    WORKFLOW_SEPARATOR,
    Clock,
    MigrationPrices,
    Objective,
    Period,
    Plan,
    PlansByTime,
    Progress,
    TimedPlan,
    TimedProblem,
    as_counted,
    in_true_prices,
    merged_periods,
    plans_by_time,
    rate_text,
    to_document,
)

DEFAULT_PERIODS = 24
LEAST_SHARE = 0.01  # of a source's highest rate: a period without requests is planned for that
MOST_LISTED = 6  # sources in a row


def _known(**values: Any) -> dict[str, Any]:
    """The values without those that are zero or empty, which JSON leaves out."""
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Calendar(PlansByTime):
    """Plans by time of a project and a trace."""

    project: AnyProject = field(kw_only=True)
    file: RateTraceFile = field(kw_only=True)

    @property
    def mean_accuracy(self) -> float | None:
        """The mean over the time of what `objective: mean_accuracy` maximises; None for another objective."""
        if stated_objective(self.project) is not Objective.MEAN_ACCURACY:
            return None
        hours = sum(row.period.hours for row in self.periods)
        return sum(row.period.hours * (row.plan.mean_accuracy or 0.0) for row in self.periods) / hours

    @property
    def plans(self) -> Mapping[tuple[str, ...], Plan]:
        """The different plans, by the options that make them."""
        return {row.plan.overrides: row.plan for row in self.periods}

    def command(self, row: TimedPlan) -> str:
        """The command that changes to a plan: plans of sites that differ are made, not served."""
        is_written = isinstance(self.project, MultiWorkflowProject) and self.project.written
        directory = shlex.quote(str(self.project.directory))
        return f"jellybean {'plan' if is_written else 'apply'} {directory}{plan_options(row.plan)}"

    def json(self) -> dict[str, Any]:
        """The calendar as JSON values, with times as in the trace file."""
        return {
            "total_usd": self.total_usd,
            "change_usd": self.change_usd,
            "unused_usd": self.unused_usd,
            **_known(unplanned=self.unplanned, penalty_usd=self.penalty_usd, forgone_usd=self.forgone_usd),
            **_known(mean_accuracy=self.mean_accuracy, limited_by=self.limited_by, unlimited_usd=self.unlimited_usd),
            "peak_usd": self.peak_usd,
            "bound_usd": self.bound_usd,
            "repeats": self.repeats,
            "periods": [self._row_json(row) for row in self.periods],
        }

    def _row_json(self, row: TimedPlan) -> dict[str, Any]:
        mixture = {"accuracy": row.plan.accuracy, "selections": selections_json(row.plan)} if row.plan.mixes else {}
        gone = [one.name for one in row.plan.left_out]
        return {
            "start_s": row.period.start_s + self.file.origin_s,
            "end_s": row.period.end_s + self.file.origin_s,
            "rates_per_s": dict(row.period.rates_per_s),
            "plan": to_document(row.plan)["hash"],
            **mixture,
            "cost_usd_per_h": row.cost_usd_per_h,
            "cost_usd": row.cost_usd,
            "change_usd": row.change_usd,
            **_known(penalty_usd=row.penalty_usd, forgone_usd=row.forgone_usd, left_out=gone),
            "loads": row.loads,
            "command": self.command(row),
        }

    def text(self) -> RenderableType:
        """Cost beside that of one plan for all of the time, and a row for each period."""
        words = ("from", "to", "rates", "workers")
        table = figures_table(*words, "USD/h", "USD", "change USD", words=words)
        before = None  # the first row states its plan also where that of the last one goes on
        for row in self.periods:
            table.add_row(
                *(formats.clock(at_s + self.file.origin_s) for at_s in (row.period.start_s, row.period.end_s)),
                _rates_text(row.period.rates_per_s),
                "as before" if row.plan.overrides == before else _plan_text(row.plan),
                formats.usd(row.cost_usd_per_h),
                formats.usd(row.cost_usd),
                f"{formats.usd(row.change_usd)}, {formats.count(row.loads, 'load')}" if row.loads else "",
            )
            before = row.plan.overrides
        return Group(Text("; ".join(self._headline())), indented(table))

    def _headline(self) -> Iterator[str]:
        parts = {"changes": self.change_usd, "rests of started units": self.unused_usd}
        shown = " and ".join(f"{what} {formats.usd(usd)}" for what, usd in parts.items() if usd)
        plans, length = formats.count(len(self.plans), "plan"), formats.span(self.file.trace.length_s)
        yield f"{plans} in {length}: {formats.usd(self.total_usd)} USD" + (f", of which {shown}" if shown else "")
        counted = self.total_usd + self.penalty_usd
        if self.penalty_usd:
            yield f"with penalties of soft targets {formats.usd(counted)}"
        counted += self.forgone_usd
        if self.forgone_usd:
            yield f"with the worth of what is left out {formats.usd(counted)}"
        if self.mean_accuracy is not None:
            yield f"mean accuracy {formats.accuracy(self.mean_accuracy)} over the time"
        if self.peak_usd > counted:
            more = (self.peak_usd / counted - 1) * 100
            yield f"one plan for the highest rates: {formats.usd(self.peak_usd)} ({more:.0f} % more)"
        if self.limited_by:
            names = dict.fromkeys(pool.rpartition(WORKFLOW_SEPARATOR)[2] for pool in self.limited_by)
            settings = " and ".join(f"workers.{name}.max_starts" for name in names)
            yield f"{formats.usd(self.unlimited_usd)} if {settings} ruled out no change"
        if self.bound_usd > 0:
            yield f"at least {formats.usd(self.bound_usd)} whatever the plans"

    def save_picture(self, path: Path) -> None:
        """Draw rates and cost over time. JellyBeanError for a format other than .svg, .png and .pdf."""
        borders_s = [*(row.period.start_s for row in self.periods), self.periods[-1].period.end_s]
        rates = [
            Steps(name, borders_s, [row.period.rates_per_s[name] for row in self.periods], color)
            for color, name in zip(SERIES, self.periods[0].period.rates_per_s, strict=False)
        ]
        costs = [row.cost_usd_per_h for row in self.periods]
        mean = self.peak_usd / sum(row.period.hours for row in self.periods)
        cost = Steps("plans by time", borders_s, costs, SERIES[0], is_filled=True)
        panels = (Panel("requests / s", rates), Panel("USD / h", [cost], [(mean, "one plan for\nthe highest\nrates")]))
        title = f"{self.periods[0].plan.name}: {next(self._headline())}"
        save_time_picture(path, title, panels, self.file.origin_s)

    def save_plans(self, folder: Path) -> int:
        """Write each different plan as HASH.json; returns their number."""
        folder.mkdir(parents=True, exist_ok=True)
        for document in map(to_document, self.plans.values()):
            write_plan_file(folder / f"{str(document['hash'])[:12]}.json", document)
        return len(self.plans)


def _rates_text(rates_per_s: Mapping[str, float]) -> str:
    """`camera 5/s, till 2/s`; of many sources their number and the sum."""
    if len(rates_per_s) > MOST_LISTED:
        return f"{formats.count(len(rates_per_s), 'source')}, {formats.rate(sum(rates_per_s.values()))} together"
    return ", ".join(f"{name} {formats.rate(rate)}" for name, rate in rates_per_s.items())


def _plan_text(plan: Plan) -> str:
    """`cloud 2, edge 1`: workers by pool; whom the plan leaves out, and the selections that it mixes."""
    counts = Counter(worker.pool for worker in plan.workers)
    lines = [", ".join(f"{pool} {count}" for pool, count in counts.items())]
    if plan.left_out:
        lines.append(f"without {', '.join(one.name for one in plan.left_out)}")
    return "\n".join([*lines, *selection_lines(plan)])


def plan_by_time(
    project: AnyProject,
    path: Path,
    *,
    most: int = DEFAULT_PERIODS,
    repeats: bool = True,
    progress: Progress = no_progress,
) -> Calendar:
    """Plan for each period of a trace, and choose where changing pays. InfeasibleError if a period has no plan.

    `most`: periods; neighbours of like rates are merged.
    """
    problem, fleet = build_problem(project), project.infrastructure
    if problem.objective is Objective.RATE:
        raise InputError(
            "objective: rate asks for the highest rates, but a trace states them: write objective: cost, mean_accuracy "
            "or latency"
        )
    file, reasons = read_rate_trace(path, problem), tuple[str, ...]()

    def plan_for(rates: Mapping[str, float], counts: Mapping[str, int], within: Clock) -> Plan | None:
        nonlocal reasons
        asked = with_settings(project, (*rates_of_sources(project, rates), *worker_counts(counts)))
        planned = plan_project(asked, time_limit_s=within.left(), compare=False)
        reasons = planned.reasons
        return None if planned.plan is None else as_counted(planned.problem, planned.plan)

    asked = TimedProblem(
        problem,
        _periods(file, most),
        repeats,
        MigrationPrices(fleet.migration.start_usd, fleet.migration.download_usd_per_gib),
        {name: pool.billing_s for name, pool in fleet.workers.items() if pool.billing_s},
        plan_for,
        (lambda plan: latency_penalty(plan, simulated_p99_s(plan)[0])) if soft_targets(problem) else None,
        partial(_worse, problem.objective),
    )
    found = plans_by_time(asked, lambda done, total: progress(done, total, f"plan {done + 1} of {total}"))
    if not isinstance(found, PlansByTime):
        shown = ", ".join(f"{name} {rate_text(rate)}" for name, rate in found.items())
        raise InfeasibleError((f"no plan meets the targets at {shown}", *reasons))
    periods = tuple(replace(row, plan=in_true_prices(problem, row.plan)) for row in found.periods)
    return Calendar(**{**vars(found), "periods": periods}, project=project, file=file)


def _periods(file: RateTraceFile, most: int) -> tuple[Period, ...]:
    """The trace's periods, no rate below a share of its source's highest."""
    peaks, found = file.trace.peaks_per_s, list[Period]()
    for stretch in file.trace.stretches:
        rates = {name: max(rate, LEAST_SHARE * peaks[name]) for name, rate in stretch.rates_per_s.items()}
        found.append(Period(stretch.start_s, stretch.end_s, rates))
    return merged_periods(found, most)


def _worse(objective: Objective, plan: Plan) -> float:
    """What plans are compared by before their cost: points of accuracy, or seconds of the p99 target.

    Rounded, so that figures that differ by less are equal and the cost decides.
    """
    if objective is Objective.MEAN_ACCURACY:
        return round(100.0 - (plan.mean_accuracy or 0.0), 2)
    return round(max(latency_targets(plan).values(), default=0.0), 3) if objective is Objective.LATENCY else 0.0
