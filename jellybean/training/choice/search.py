"""Searches the fastest candidate: predictions say which one to try next, and short real runs decide.

A prediction leaves out what depends on the machine (cores that processes share, caches, Python). So the candidate with
the least predicted time is tried; what its trial took, over what was predicted, corrects the predictions of candidates
like it. The search ends when all candidates near the best one were tried, and no number of processes was given up after
a single trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from jellybean.training.choice.candidates import Candidate
from jellybean.training.choice.costs import MeasuredCosts

Predict = Callable[[Candidate, MeasuredCosts], float]  # seconds per batch


@dataclass(frozen=True)
class SearchLimits:
    """`trials`: most candidates that are tried; 0: predictions decide. `seconds`: after which no further one is tried.

    `explored`: candidates that are tried in a layout before their times count against its other ones, and with a number
    of processes before it is given up. `margin`: tried are candidates predicted to take less than so many times as long
    as the best. `finalists`: how many race beside the fastest with each number of processes, if they are at most
    `close` times slower than the best: one iteration each in turn, so that other programs slow all of them alike.
    `race_s`: how long they race. `rounds`: fewest and most of them. Numbers are by simulated searches
    (docs/design/training.md); seconds are what a user may wait for a choice.
    """

    trials: int = 16
    seconds: float = 20.0
    explored: int = 2
    margin: float = 1.2
    finalists: int = 2
    close: float = 1.6
    race_s: float = 8.0
    rounds: tuple[int, int] = (3, 40)


@dataclass
class Search:
    """State of a search over `candidates`, of which there is at least one. All seconds are per batch."""

    candidates: Sequence[Candidate]
    predict: Predict
    limits: SearchLimits = SearchLimits()
    measured: MeasuredCosts = field(default_factory=MeasuredCosts)
    trials: dict[Candidate, list[float]] = field(default_factory=dict)
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        self._predicted = self._hoped = self._predictions()
        self._raced: tuple[Candidate, ...] = ()

    def next(self) -> Candidate | None:
        """The candidate to try next; None when the search is done.

        One process comes first: it shows what updates and Python cost, and what the others must beat.
        """
        if not self.limits.trials:
            return None
        if not self.trials:
            return self._best([one for one in self.candidates if one.processes == 1] or self.candidates)
        if len(self.trials) < self.limits.trials and self.spent_s < self.limits.seconds:
            best = self._best(self.candidates)
            return self._challenger(best) if best in self.trials else best
        return None

    @property
    def finalists(self) -> list[Candidate]:
        """Those that race: the fastest with each number of processes, and others close to the best.

        One process always, whose single trial other programs may have slowed by any factor.
        """
        fastest = sorted(self.trials, key=self.seconds)
        leaders = list({one.processes: one for one in reversed(fastest)}.values())
        limit_s = self.limits.close * self.seconds(fastest[0]) if fastest else 0.0
        others = [one for one in fastest if one not in leaders and self.seconds(one) <= limit_s]
        racing = sorted([*leaders, *others[: self.limits.finalists]], key=self.seconds)
        return racing if len(racing) > 1 else []

    @property
    def rounds(self) -> int:
        """Rounds of the race: each finalist trains one iteration in a round."""
        least, most = self.limits.rounds
        round_s = sum(map(self.seconds, self.finalists))
        return max(least, min(most, int(self.limits.race_s / max(round_s, 1e-6))))

    def settle(self, raced: Mapping[Candidate, float]) -> None:
        """Take the finalists' seconds, which replace those of their trials."""
        for candidate, batch_s in raced.items():
            self.trials[candidate] = [batch_s]
        self._raced = tuple(raced)

    def record(self, candidate: Candidate, batch_s: float, spent_s: float, measured: MeasuredCosts) -> None:
        """Take the seconds of a candidate's batch, how long the trial took, and what is measured by now."""
        self.trials.setdefault(candidate, []).append(batch_s)
        self.spent_s += spent_s
        if measured != self.measured:
            self.measured = measured
            self._predicted = self._predictions()
        if len(self.trials) == 1:
            self._hoped = self._predicted

    @property
    def best(self) -> Candidate:
        """The fastest: of the finalists, else of those that were tried, else by prediction."""
        return self._best(self._raced or list(self.trials) or self.candidates)

    def seconds(self, candidate: Candidate) -> float:
        """Seconds of a candidate: measured, or predicted and corrected by the trials of candidates like it."""
        if candidate in self.trials:
            return median(self.trials[candidate])
        return self._predicted[candidate] * self._correction(candidate)

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        return min(candidates, key=lambda one: (self.seconds(one), one.processes))

    def _challenger(self, best: Candidate) -> Candidate | None:
        """One that may yet beat the best of those tried; None if there is no such candidate.

        Either it is predicted within the margin, or its number of processes has too few trials, and it would be the
        fastest by what the very first trial taught: a single trial may have been slowed by any factor, by other
        programs or by what its schedule alone costs, and later predictions for as many processes depend on it.
        """
        best_s, counts = self.seconds(best), Counter(one.processes for one in self.trials)
        untried = [one for one in self.candidates if one not in self.trials]
        near = [one for one in untried if self.seconds(one) < self.limits.margin * best_s]
        few = [one for one in untried if counts[one.processes] < self.limits.explored and self._hoped[one] < best_s]
        challengers = near or few
        return self._best(challengers) if challengers else None

    def _predictions(self) -> dict[Candidate, float]:
        return {one: self.predict(one, self.measured) for one in self.candidates}

    def _correction(self, candidate: Candidate) -> float:
        """Measured over predicted seconds of the candidates tried that are like this one.

        Until a few were tried in its layout, the factor is at most 1, so that they are. Then the same schedule has its
        mean, and another one the smallest, as some schedules cost more than is predicted.
        """
        ratios = {one: median(times) / max(self._predicted[one], 1e-9) for one, times in self.trials.items()}
        layout = {one: ratio for one, ratio in ratios.items() if _same_layout(one, candidate)}
        if len(layout) < self.limits.explored:
            return min(1.0, *layout.values()) if layout else 1.0
        same = [ratio for one, ratio in layout.items() if one.schedule == candidate.schedule]
        return mean(same) if same else min(layout.values())


def _same_layout(one: Candidate, other: Candidate) -> bool:
    return one.layout == other.layout
