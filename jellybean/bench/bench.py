"""Load tests of a project's running plan: its own rate on held-out inputs, or the highest rate that it sustains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.bench.heldout import held_out
from jellybean.bench.load_settings import DURATION_S, LoadSettings
from jellybean.bench.result import BenchResult
from jellybean.bench.sampling_range import as_emulated, highest_rate_range, sampling_ranges
from jellybean.bench.target import Target, no_progress
from jellybean.bench.window import Progress
from jellybean.planning.stale_accuracy import stale_accuracy_text

if TYPE_CHECKING:
    from jellybean.documents import Project
    from jellybean.serving.endpoint import Endpoint
    from jellybean_solver import Plan


def bench(
    project: Project,
    *,
    duration_s: float = DURATION_S,
    warmup_s: float | None = None,
    rate_scale: float = 1.0,
    seed: int = 0,
    progress: Progress = no_progress,
    endpoint: Endpoint | None = None,
    served_in: Path | None = None,
    workflow: str = "",
) -> BenchResult:
    """Measure the project's running plan under the rate that it was made for, times `rate_scale`.

    `warmup_s`: before what counts; by default as `Target.warm_up_s`. `endpoint`: a gateway elsewhere that serves it.
    `workflow`: which one of several the project is, and `served_in`: the folder of all of them.
    """
    load = Load.of(project, endpoint, served_in, workflow, rate_scale)
    warmup_s = load.target.warm_up_s if warmup_s is None else warmup_s
    settings = load.settings(duration_s, warmup_s, seed)
    return load.compared(load.measure(settings, progress), settings, progress)


@dataclass(frozen=True, slots=True)
class Load:
    """A plan that is served and the load on it: its planned rate, times `rate_scale`. `workflow`: as of `bench`."""

    project: Project
    target: Target
    workflow: str = ""
    rate_scale: float = 1.0

    @classmethod
    def of(
        cls, project: Project, endpoint: Endpoint | None, served_in: Path | None, workflow: str, rate_scale: float
    ) -> Load:
        """The load on what is served now; the arguments are as of `bench`."""
        target = Target.of(served_in or project.directory, held_out(project), endpoint, workflow)
        return cls(project, target, workflow, rate_scale)

    def settings(self, duration_s: float, warmup_s: float, seed: int) -> LoadSettings:
        """Settings of a measurement within the time limit of the work.

        At more than the planned rate no requests follow for the accuracy. OutOfTimeError as of `Target.in_time`.
        """
        settings = LoadSettings(duration_s, warmup_s, seed, all_rows=self.rate_scale <= 1.0)
        return self.target.in_time(settings, self._rate_per_s)

    def measure(self, settings: LoadSettings, progress: Progress) -> BenchResult:
        """Offer the load and measure."""
        return self.target.measure(self._rate_per_s, settings, progress)

    def compared(self, result: BenchResult, settings: LoadSettings, progress: Progress) -> BenchResult:
        """The result with its ranges by chance, which take simulations, and with what its accuracy depends on."""
        due_s = self.target.due_s(self._rate_per_s, settings)
        simulated, times_s = _simulated(self.target, result), (settings.warmup_s, settings.duration_s)
        ranges = sampling_ranges(simulated, due_s, *times_s, progress, self.workflow)
        return _with_stale_accuracy(replace(result, ranges=ranges), self.project, self.target)

    @property
    def _rate_per_s(self) -> float:
        return self.rate_scale * self.target.planned_per_s


def saturate(
    project: Project,
    *,
    start_rate_per_s: float | None = None,
    seed: int = 0,
    window_s: float | None = None,
    progress: Progress = no_progress,
    endpoint: Endpoint | None = None,
    served_in: Path | None = None,
    workflow: str = "",
) -> BenchResult:
    """Measure the highest sustained rate of the project's running plan, by bisection.

    `start_rate_per_s`: first guess, for example the simulator's; the planned rate by default. The other
    arguments are as of `bench`; other workflows have no load meanwhile.
    """
    target = Target.of(served_in or project.directory, held_out(project), endpoint, workflow)
    result = target.saturate(start_rate_per_s, seed=seed, window_s=window_s, progress=progress)
    if result.highest_rate_per_s is not None and not workflow:
        ranges = highest_rate_range(_simulated(target, result), result.duration_s, result.highest_rate_per_s)
        result = replace(result, ranges=ranges)
    return _with_stale_accuracy(result, project, target)


def _simulated(target: Target, result: BenchResult) -> Plan:
    """The whole plan as it was measured: boxes that joined emulate nothing."""
    return target.served if result.joined else as_emulated(target.served)


def _with_stale_accuracy(result: BenchResult, project: Project, target: Target) -> BenchResult:
    """The result with what has changed since the accuracy of its plan was measured, if it has an accuracy."""
    if result.accuracy is None:
        return result
    return replace(result, stale_accuracy=stale_accuracy_text(project, target.plan))
