"""Requests for one operator alone: who waits for which, how many go into one run, how long to look for an answer."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.errors import AgentError
from jellybean_agent.tensors.tensors import Array
from jellybean_agent.worker.run_outputs import is_asked

MAX_ASKED = 32  # under way at once: half of the queue at which credit stops, so that they cannot fill it
_TOGETHER_S = 1e-3  # of requests for one operator alone, in one run
_FORGETS = 1.02  # by which the shortest run counts for longer, with each that comes
_PATIENCE_S = 150e-6  # looking for an answer costs less than to be woken by it, of the quickest models
_GAP_S = 30e-6  # since the answer before: others wait to be read where it is less

Answered = Callable[[Mapping[str, Array] | AgentError], None]
Ask = tuple[str, str, Sequence[Array]]  # request, operator, inputs


class Asks:
    """Those of one worker. Of the event loop, but `together`, which is called under the brain's lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._answered: dict[str, Answered] = {}  # by request
        self._unsaid: list[Ask] = []  # of these, what the brain does not know of yet
        self._shortest_s: dict[str, float] = {}  # of late, of runs of an operator that was asked for alone
        self._last_s = 0.0  # when one was answered last
        self._impatience = 0  # how often in a row looking for an answer at once was in vain

    def __len__(self) -> int:
        """How many are not answered yet."""
        return len(self._answered)

    def __contains__(self, request: str) -> bool:
        return request in self._answered

    @property
    def unsaid(self) -> int:
        """How many the brain does not know of yet."""
        return len(self._unsaid)

    def add(self, operator: str, inputs: Sequence[Array], answered: Answered) -> str:
        """A request's key; `answered` gets the outputs, or why there are none."""
        request = f"asked-{next(self._numbers)}"  # the gateway's keys look otherwise
        self._answered[request] = answered
        self._unsaid.append((request, operator, inputs))
        return request

    def take(self) -> list[Ask]:
        """What the brain is to learn of."""
        found, self._unsaid = self._unsaid, []
        return found

    def drop(self, request: str) -> bool:
        """Nobody waits for it any more; whether somebody did."""
        if self._answered.pop(request, None) is None:
            return False
        self._unsaid = [ask for ask in self._unsaid if ask[0] != request]
        return True

    def answer(self, answers: Mapping[str, Mapping[str, Array]]) -> None:
        """Outputs by request; those that were given up are nobody's."""
        for request, outputs in answers.items():
            if (answered := self._answered.pop(request, None)) is not None:
                answered(outputs)
                self._last_s = time.monotonic()

    def fail(self, request: str, error: AgentError) -> None:
        self._answered.pop(request)(error)

    def fail_all(self, error: AgentError) -> None:
        answered, self._answered, self._unsaid = self._answered, {}, []
        for tell in answered.values():
            tell(error)

    def together(self, operator: str, run_s: float) -> int:
        """How many that were asked for one by one go into one run: where runs are so short that telling of them counts.

        The shortest of late says what the model takes; others waited for a processor too.
        """
        shortest_s = min(run_s, _FORGETS * self._shortest_s.get(operator, math.inf))
        self._shortest_s[operator] = shortest_s
        return max(1, min(MAX_ASKED, int(_TOGETHER_S / max(shortest_s, 1e-9))))

    def patience_s(self, run: RunOperator, now_s: float) -> float | None:
        """How long to look for the answer at once, as long as that has paid; None where there is more to be done."""
        if not is_asked(run) or len(self._answered) != 1 or now_s - self._last_s <= _GAP_S:
            return None
        return _PATIENCE_S if self._impatience < 3 or run.run % 64 == 0 else 0.0

    def looked(self, *, in_vain: bool) -> None:
        """How the patience of a run ended."""
        self._impatience = self._impatience + 1 if in_vain else 0
