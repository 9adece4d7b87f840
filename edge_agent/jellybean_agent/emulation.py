"""How long a slower device is busy with one run: the model's compute here, measured warm, over the device's speed.

The CPU time of a run in service is no measure of compute: after a pause caches are cold and the processor has to wake
up, which costs a few hundred microseconds whatever the model (seen: 15 % of 4 ms), and a slow device's speed would
magnify that. So each shape of inputs is calibrated by runs back to back, of which the quickest counts: what else the
machine does only ever adds. Agents that start together disturb each other (seen: 30 %), so a device goes on timing
itself, now and then, in time that it would have spent waiting. The same in the profiler and in service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jellybean_agent.tensors import Array

_WARM_UP_RUNS, _RUNS = 2, 15
_ENOUGH_S = 0.5  # of CPU time: models that are slow here need fewer runs
_MOST_SHAPES = 256  # remembered; more are forgotten and calibrated again
_ROUND_RUNS, _MOST_ROUNDS = 5, 20  # per shape, once it is in service
_BETWEEN_ROUNDS_S = 0.25

Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Calibration:
    least_s: float  # of CPU time, over all runs so far
    rounds: int = 0
    last_round: float = -math.inf  # time.monotonic()


class Emulation:
    """A device of `speed` < 1 times this machine's, running one model. `run` runs the model on what it is given."""

    def __init__(self, speed: float, run: Callable[[Mapping[str, Array]], object]) -> None:
        self._speed, self._run = speed, run
        self._shapes: dict[Shapes, _Calibration] = {}

    def busy_s(self, feed: Mapping[str, Array]) -> float:
        """Seconds that the device is busy with inputs of these shapes; runs the model when they are new."""
        shapes = _shapes(feed)
        if shapes not in self._shapes:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[shapes] = _Calibration(self._least_s(feed, _RUNS))
        return self._shapes[shapes].least_s / self._speed

    def wait(self, feed: Mapping[str, Array], left_s: float) -> None:
        """Be busy for `left_s` more with inputs that `busy_s` was asked about; some of it may go to a calibration."""
        until = time.perf_counter() + left_s
        known = self._shapes[_shapes(feed)]
        due = known.rounds < _MOST_ROUNDS and time.monotonic() - known.last_round >= _BETWEEN_ROUNDS_S
        if due and 2 * (_WARM_UP_RUNS + _ROUND_RUNS) * known.least_s < left_s:
            known.least_s = min(known.least_s, self._least_s(feed, _ROUND_RUNS))
            known.rounds += 1
            known.last_round = time.monotonic()
        time.sleep(max(0.0, until - time.perf_counter()))

    def forget(self) -> None:
        """Calibrate all shapes again when they are next seen."""
        self._shapes.clear()

    def _least_s(self, feed: Mapping[str, Array], runs: int) -> float:
        taken: list[float] = []
        for run in range(_WARM_UP_RUNS + runs):
            began = time.thread_time()
            self._run(feed)
            if run >= _WARM_UP_RUNS:
                taken.append(time.thread_time() - began)
            if sum(taken) > _ENOUGH_S:
                break
        return min(taken)


def _shapes(feed: Mapping[str, Array]) -> Shapes:
    return tuple(array.shape for array in feed.values())
