"""Samples what requests and their answers are like, until the recorder writes it."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from jellybean.ledger.readings import Moment
from jellybean.ledger.value_figures import Figure, Port, ValueLine, figures_of
from jellybean_agent import AgentError, PlanView, RawTensor, decode_tensor
from jellybean_protos.agent.v1 import agent_pb2

GAP_S = 0.2  # between two tensors of a port that are looked at
MOST = 10_000  # lines while the database is away; the oldest go

_Key = tuple[str, str, Port, str, Figure]  # workflow, plan, port, name, figure


class ValueLog:
    """Sums of figures since the last `take`, which another thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the sums
        self._sums: dict[_Key, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # count, values, squares
        self._due_s: dict[tuple[Port, str], float] = {}
        self._since = Moment.now()
        self._unwritten: list[ValueLine] = []

    def see(self, view: PlanView, port: Port, tensors: Mapping[str, agent_pb2.Tensor | RawTensor]) -> None:
        """Look at a request's tensors, unless others of their name were looked at a moment ago."""
        now_s = time.monotonic()
        for name, tensor in tensors.items():
            if now_s < self._due_s.get((port, name), 0.0):
                continue
            self._due_s[port, name] = now_s + GAP_S
            try:
                figures = figures_of(decode_tensor(tensor))
            except AgentError:
                continue  # the model's worker refuses it
            with self._lock:
                for figure, value in figures.items():
                    total = self._sums[view.served_name, view.hash, port, name, figure]
                    total[0] += 1
                    total[1] += value
                    total[2] += value * value

    def take(self) -> list[ValueLine]:
        """The lines since the last time, which are forgotten here."""
        began, self._since = self._since, Moment.now()
        began_s, seconds = began.unix_s, self._since.seconds_since(began)
        with self._lock:
            sums = dict(self._sums)
            self._sums.clear()
        taken, self._unwritten = self._unwritten, []
        return [*taken, *(_line(began_s, seconds, key, *total) for key, total in sums.items())]

    def give_back(self, lines: list[ValueLine]) -> None:
        """Keep them longer: they could not be written."""
        self._unwritten = [*lines, *self._unwritten][-MOST:]


def _line(began_s: float, seconds: float, key: _Key, count: float, total: float, squares: float) -> ValueLine:
    mean = total / count
    deviation = math.sqrt(max(0.0, squares / count - mean * mean))
    return ValueLine(began_s, seconds, *key, int(count), mean, deviation)
