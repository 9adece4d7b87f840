"""Samples what the inputs of requests are like, until the recorder writes it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from jellybean.ledger.input_figures import InputFigure, InputLine, figures_of
from jellybean.serving.gateway.plans.source_messages import Inputs
from jellybean_agent import AgentError, PlanView, decode_tensor

GAP_S = 0.2  # between two requests of a source that are looked at
MOST = 10_000  # lines while the database is away; the oldest go

_Key = tuple[str, str, str, InputFigure]  # workflow, plan, source, figure


class InputLog:
    """Sums of figures since the last `take`, which another thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the sums
        self._sums: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
        self._due_s: dict[str, float] = {}
        self._since_s = time.time()
        self._unwritten: list[InputLine] = []

    def see(self, view: PlanView, inputs: Inputs) -> None:
        """Look at a request's inputs, unless its sources were looked at a moment ago."""
        now_s = time.monotonic()
        for source, tensor in inputs.items():
            if now_s < self._due_s.get(source, 0.0):
                continue
            self._due_s[source] = now_s + GAP_S
            try:
                figures = figures_of(decode_tensor(tensor))
            except AgentError:
                continue  # the model's worker refuses it
            with self._lock:
                for figure, value in figures.items():
                    total = self._sums[view.name, view.hash, source, figure]
                    total[0] += 1
                    total[1] += value

    def take(self) -> list[InputLine]:
        """The lines since the last time, which are forgotten here."""
        began_s, self._since_s = self._since_s, time.time()
        seconds = max(0.0, self._since_s - began_s)
        with self._lock:
            sums = dict(self._sums)
            self._sums.clear()
        taken, self._unwritten = self._unwritten, []
        return [
            *taken,
            *(InputLine(began_s, seconds, *key, int(count), total / count) for key, (count, total) in sums.items()),
        ]

    def give_back(self, lines: list[InputLine]) -> None:
        """Keep them longer: they could not be written."""
        self._unwritten = [*lines, *self._unwritten][-MOST:]
