"""How long a slower device is busy with one run: the model's compute here, measured warm, over the device's speed.

The CPU time of a run in service is no measure of compute: after a pause caches are cold and the processor has to wake
up, which costs a few hundred microseconds whatever the model (seen: 15 % of 4 ms), and a slow device's speed would
magnify that. So each shape of inputs is calibrated once, by runs back to back, of which the quickest counts: what else
the machine does only ever adds. The same in the profiler and in service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from jellybean_agent.tensors import Array

_WARM_UP_RUNS, _RUNS = 2, 15
_ENOUGH_S = 0.5  # of CPU time: models that are slow here need fewer runs
_MOST_SHAPES = 256  # remembered; more are forgotten and calibrated again

Shapes = tuple[tuple[int, ...], ...]


class Emulation:
    """A device of `speed` < 1 times this machine's, running one model. `run` runs the model on what it is given."""

    def __init__(self, speed: float, run: Callable[[Mapping[str, Array]], object]) -> None:
        self._speed, self._run = speed, run
        self._busy_s: dict[Shapes, float] = {}

    def busy_s(self, feed: Mapping[str, Array]) -> float:
        """Seconds that the device is busy with inputs of these shapes; runs the model when they are new."""
        shapes = tuple(array.shape for array in feed.values())
        if shapes not in self._busy_s:
            if len(self._busy_s) >= _MOST_SHAPES:
                self._busy_s.clear()
            self._busy_s[shapes] = self._calibrated_s(feed) / self._speed
        return self._busy_s[shapes]

    def forget(self) -> None:
        """Calibrate all shapes again when they are next seen."""
        self._busy_s.clear()

    def _calibrated_s(self, feed: Mapping[str, Array]) -> float:
        taken: list[float] = []
        for run in range(_WARM_UP_RUNS + _RUNS):
            began = time.thread_time()
            self._run(feed)
            if run >= _WARM_UP_RUNS:
                taken.append(time.thread_time() - began)
            if sum(taken) > _ENOUGH_S:
                break
        return min(taken)
