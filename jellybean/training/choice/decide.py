"""Decides how a run trains: rank 0 searches, and all ranks try the candidates that it asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.choice.candidates import Candidate, enumerate_candidates
from jellybean.training.choice.costs import MeasuredCosts, Prices
from jellybean.training.choice.profiles import SizedProfiles
from jellybean.training.choice.report import choice_note, slower_candidates
from jellybean.training.choice.schedule_choice import ScheduleChoice, predict
from jellybean.training.choice.search import Search, SearchLimits
from jellybean.training.choice.trial import Raced, Trial, TrialRun, measure, race
from jellybean.training.errors import TrainingError
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.processes.ranks import Rank
from jellybean.training.tensor_parallel.profile import LayerParts
from jellybean_solver import SolverError

MakeTrial = Callable[[TrainingDocument, ScheduleChoice], TrialRun]


@dataclass(frozen=True)
class Decision:
    """The document of the chosen candidate, with nothing left free, and its cuts. `note`: why, for people."""

    document: TrainingDocument
    choice: ScheduleChoice
    note: str


class Predictor:
    """Predicts candidates from profiles of the model. `states_per_weight`: size of the optimizer's state.

    `parts`: of split layers; None where no candidate splits any. `check`: raises TrainingError for a document that the
    model cannot be trained by.
    """

    def __init__(
        self,
        document: TrainingDocument,
        profiles: SizedProfiles,
        states_per_weight: float,
        link: LinkSpeed,
        parts: LayerParts | None = None,
        check: Callable[[TrainingDocument, ScheduleChoice], None] = lambda document, choice: None,
    ) -> None:
        self._check = check
        self._document, self._profiles, self._link, self._parts = document, profiles, link, parts
        self._states_per_weight = states_per_weight

    def trained_bytes(self, candidate: Candidate) -> float:
        """Bytes of a process's trained weights, over all stages."""
        return sum(self._profile(candidate).trained_bytes)

    def usable(self, candidates: list[Candidate]) -> tuple[list[Candidate], dict[str, str]]:
        """(candidates that fit and are allowed, reasons by schedule against those that are not).

        The key `tensor` says why no layer can be split. TrainingError if the document asks for that.
        """
        unsplit = self._unsplit(sorted({one.tensor for one in candidates} - {1}))
        if unsplit and not self._document.leaves_open("tensor"):
            raise TrainingError(next(iter(unsplit.values())))
        fit, rejected, refused = [], dict[str, str](), set[str]()
        for candidate in candidates:
            if candidate.tensor in unsplit:
                continue
            try:
                choice = self.choice(candidate, MeasuredCosts())
            except (SolverError, TrainingError) as error:
                rejected[candidate.schedule] = str(error)
                continue
            try:
                self._check(candidate.applied(self._document), choice)
            except TrainingError as error:
                refused.add(str(error))
                rejected[candidate.schedule] = str(error)
            else:
                fit.append(candidate)
        if not fit and len(refused) == 1:  # whatever the schedule, and so of the document
            raise TrainingError(refused.pop())
        rejected = {name: why for name, why in rejected.items() if name not in {one.schedule for one in fit}}
        if unsplit and all(one.tensor == 1 for one in fit):
            rejected["tensor"] = next(iter(unsplit.values())).removeprefix("tensor: ")
        return fit, rejected

    def _unsplit(self, sizes: list[int]) -> dict[int, str]:
        """Why no layer can be split over so many processes, by those numbers for which it is so."""
        reasons: dict[int, str] = {}
        if self._parts is None:
            return reasons
        for ways in sizes:
            try:
                self._parts.lowered(ways)
            except TrainingError as error:
                reasons[ways] = str(error)
        return reasons

    def choice(self, candidate: Candidate, measured: MeasuredCosts) -> ScheduleChoice:
        """A candidate's stages and predicted times. SolverError or TrainingError if it cannot be used."""
        document, prices = candidate.applied(self._document), Prices(self._link, measured)
        return predict(candidate.schedule, self._profile(candidate), document, self._states_per_weight, prices)

    def _profile(self, candidate: Candidate) -> TorchProfile:
        """The profile of what one of the candidate's processes has of a micro-batch."""
        rows = max(1, self._document.batch // (candidate.microbatches * candidate.replicas))
        whole = self._profiles.at(rows)
        return whole if self._parts is None else self._parts.profile(whole, candidate.tensor, rows)

    def batch_s(self, candidate: Candidate, measured: MeasuredCosts) -> float:
        """Predicted seconds of a batch."""
        return self.choice(candidate, measured).microbatch_s * candidate.microbatches


class _Searcher:
    """Rank 0's part: which candidate is next, and what the trials have shown."""

    def __init__(self, document: TrainingDocument, processes: int, predictor: Predictor, limits: SearchLimits) -> None:
        self._document, self._processes, self._predictor = document, processes, predictor
        candidates, undefined = enumerate_candidates(document, processes)
        usable, refused = predictor.usable(candidates)
        self._rejected = undefined | refused
        if not usable:
            reasons = "\n".join(_listed(self._rejected))
            raise TrainingError(f"no schedule can be used on {processes} processes\n{reasons}")
        self.search = Search(usable, predictor.batch_s, limits)
        self._choices: dict[Candidate, ScheduleChoice] = {}

    def choice(self, candidate: Candidate) -> ScheduleChoice:
        """The candidate's stages: as tried, or as predicted by now."""
        return self._choices.get(candidate) or self._predictor.choice(candidate, self.search.measured)

    def try_out(self, candidate: Candidate, make_trial: MakeTrial) -> None:
        """Try a candidate, together with the other ranks, and record what it shows."""
        began = time.perf_counter()
        choice = self.choice(candidate)
        document = candidate.applied(self._document)
        trial = _tried(document, choice, make_trial)
        measured = self.search.measured
        if candidate not in self.search.trials:
            schedule = trial.schedule
            trained_bytes = self._predictor.trained_bytes(candidate)
            measured = measured.learned(document, schedule, choice.costs, trial.costs, trained_bytes)
        batch_s = trial.iteration_s / trial.schedule.microbatches * candidate.microbatches
        self.search.record(candidate, batch_s, time.perf_counter() - began, measured)
        self._choices[candidate] = choice.tried(trial.costs, batch_s / candidate.microbatches, trial.idle)

    def finalists(self) -> list[Candidate]:
        """Those that race: as many as fit into a device's memory together."""
        needed = {candidate: self._choices[candidate].memory_bytes for candidate in self.search.finalists}
        together = fitting_together(needed, self._document.memory_bytes)
        return together if len(together) > 1 else []

    def take(self, raced: Mapping[Candidate, Raced]) -> None:
        """Record what the finalists' race has shown."""
        batches = {one: shown.microbatch_s * one.microbatches for one, shown in raced.items()}
        self.search.settle(batches)
        for one, shown in raced.items():
            choice = self._choices[one]
            self._choices[one] = choice.tried(choice.costs, shown.microbatch_s, shown.idle)

    def decision(self) -> Decision:
        """The fastest candidate, with the reasons against the others."""
        best = self.search.best
        rejected = self._rejected | slower_candidates(self.search, best)
        choice = replace(self.choice(best), rejected=rejected)
        return Decision(best.applied(self._document), choice, choice_note(self.search, best, self._processes))


def _listed(rejected: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason, with the schedules that it stands against."""
    names: dict[str, list[str]] = {}
    for name, why in rejected.items():
        names.setdefault(why.removeprefix(f"{name}: "), []).append(name)
    return (f"  - {', '.join(several)}: {why}" for why, several in names.items())


def fitting_together(needed_bytes: Mapping[Candidate, float], memory_bytes: float | None) -> list[Candidate]:
    """Candidates that fit into the memory together, those named first preferred. None: no limit."""
    left = math.inf if memory_bytes is None else memory_bytes
    together: list[Candidate] = []
    for candidate, needed in needed_bytes.items():
        if needed <= left:
            together.append(candidate)
            left -= needed
    return together


def decide(
    document: TrainingDocument,
    rank: Rank,
    predictor: Predictor | None,
    make_trial: MakeTrial,
    report: Callable[[str], None] = lambda text: None,
) -> Decision:
    """Search the fastest candidate. A collective call. `predictor`: None on other ranks than the first.

    `report`: what the first rank calls while it searches, with how far it is. Devices other than CPUs are not tried
    yet: there predictions decide.
    """
    limits = SearchLimits() if rank.device.type == "cpu" else SearchLimits(trials=0)
    searcher = _Searcher(document, dist.get_world_size(), predictor, limits) if predictor is not None else None
    progress = SearchProgress(report)
    while True:
        candidate = searcher.search.next() if searcher is not None else None
        asked: list[Any] = [None]
        if searcher is not None and candidate is not None:
            asked = [(candidate.applied(document), searcher.choice(candidate))]
        dist.broadcast_object_list(asked, src=0)
        if asked[0] is None:
            break
        if searcher is not None and candidate is not None:
            searcher.try_out(candidate, make_trial)
            progress.tried(searcher.search)
        else:
            other, choice = asked[0]
            _tried(other, choice, make_trial)
    _race(document, searcher, make_trial)
    decision: list[Decision | None] = [searcher.decision() if searcher is not None else None]
    dist.broadcast_object_list(decision, src=0)
    if decision[0] is None:
        raise TrainingError("rank 0 sent no decision")
    return decision[0]


class SearchProgress:
    """Reports how far a search is, at most once in `every_s` seconds."""

    def __init__(
        self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic, every_s: float = 5.0
    ) -> None:
        self._report, self._clock, self._every_s = report, clock, every_s
        self._last_s = clock()

    def tried(self, search: Search) -> None:
        """One more candidate was tried."""
        if self._clock() - self._last_s >= self._every_s:
            self._last_s = self._clock()
            left_s = max(0.0, search.limits.seconds - search.spent_s) + search.limits.race_s
            tried, count = len(search.trials), len(search.candidates)
            self._report(f"tried {tried} of {count} schedules and splits: at most about {left_s:.0f} s left")


def _race(document: TrainingDocument, searcher: _Searcher | None, make_trial: MakeTrial) -> None:
    """Let the finalists run in turn, all of them set up at once."""
    finalists = searcher.finalists() if searcher is not None else []
    asked: list[Any] = [None, 0]
    if searcher is not None:
        asked = [[(one.applied(document), searcher.choice(one)) for one in finalists], searcher.search.rounds]
    dist.broadcast_object_list(asked, src=0)
    if not asked[0]:
        return
    with ExitStack() as stack:
        trials = []
        for each, choice in asked[0]:
            trials.append(make_trial(each, choice))
            stack.callback(trials[-1].close)
        raced = race(trials, asked[1])
    if searcher is not None:
        searcher.take(dict(zip(finalists, raced, strict=True)))


def _tried(document: TrainingDocument, choice: ScheduleChoice, make_trial: MakeTrial) -> Trial:
    trial = make_trial(document, choice)
    try:
        return measure(trial, choice.costs)
    finally:
        trial.close()
