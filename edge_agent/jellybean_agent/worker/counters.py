"""What a worker has done, as its metrics tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.worker.run_outputs import Done, is_asked


class Figures:
    """What this worker has done, by operator: requests completed and failed, seconds busy, runs by size.

    `broken`: batches that failed and ran again one by one. `late_s`: seconds that runs took longer than on the device
    that is emulated. `asked`, `asked_failed`: requests for the operator alone; the seconds are of these too.
    `expired`: requests that were too late and took no run; under the empty name those that waited for inputs.
    `crossed`: bytes of outputs that left for another tier, by operator and tier.
    """

    def __init__(self, operators: Iterable[str]) -> None:
        names = tuple(operators)
        self.completed = dict.fromkeys(names, 0)
        self.failed = dict.fromkeys(names, 0)
        self.broken = dict.fromkeys(names, 0)
        self.busy_s = dict.fromkeys(names, 0.0)
        self.late_s = dict.fromkeys(names, 0.0)
        self.runs = {name: Counter[int]() for name in names}
        self.asked = dict.fromkeys(names, 0)
        self.asked_failed = dict.fromkeys(names, 0)
        self.expired = dict.fromkeys((*names, ""), 0)
        self.crossed = Counter[tuple[str, str]]()

    def done(self, run: RunOperator, done: Done) -> None:
        self.busy_s[run.operator] += done.busy_s
        self.late_s[run.operator] += done.late_s
        if is_asked(run):
            self.asked[run.operator] += len(done.outputs)
        else:
            self.completed[run.operator] += len(done.outputs)
            self.runs[run.operator].update(done.sizes)
