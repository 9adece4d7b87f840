"""Sums the outcomes of audits by plan, site and selection, until the recorder writes them."""

from __future__ import annotations

import threading
from collections import defaultdict

from jellybean.ledger.audits import AuditLine
from jellybean.ledger.readings import Moment
from jellybean.serving.gateway.accounting.answer_log import site_name
from jellybean.serving.gateway.audits.audits import AuditOutcome
from jellybean.serving.gateway.plans.served_plan import ServedPlan

MOST = 10_000  # lines while the database is away; the oldest go
_Key = tuple[str, str, str, str]  # workflow, plan, site, selection


class AuditLog:
    """Sums since the last `take`, which another thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the sums
        self._sums: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0, 0, 0])  # compared, agreed, shed, lost
        self._since = Moment.now()
        self._unwritten: list[AuditLine] = []

    def count(self, plan: ServedPlan, route: int, outcome: AuditOutcome, agreed: float) -> None:
        """Count an audit that has ended."""
        view = plan.view
        key = view.served_name, view.hash, site_name(view, view.table.plain(route)), view.selection_on(route)
        with self._lock:
            self._sums[key][_COLUMNS[outcome]] += 1
            self._sums[key][1] += agreed

    def take(self) -> list[AuditLine]:
        """The lines since the last time, which are forgotten here."""
        began, self._since = self._since, Moment.now()
        began_s, seconds = began.unix_s, self._since.seconds_since(began)
        with self._lock:
            sums = dict(self._sums)
            self._sums.clear()
        taken, self._unwritten = self._unwritten, []
        lines = [
            AuditLine(began_s, seconds, workflow, plan, site, int(compared), agreed, int(shed), int(lost), selection)
            for (workflow, plan, site, selection), (compared, agreed, shed, lost) in sums.items()
        ]
        return [*taken, *lines]

    def give_back(self, lines: list[AuditLine]) -> None:
        """Keep them longer: they could not be written."""
        self._unwritten = [*lines, *self._unwritten][-MOST:]


_COLUMNS = {AuditOutcome.COMPARED: 0, AuditOutcome.SHED: 2, AuditOutcome.LOST: 3}
