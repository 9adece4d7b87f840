"""What a gateway counts as it serves, in a file that outlives its process: requests by client, bytes by source."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from jellybean.ledger.columns import (
    ANSWERED_US,
    COLUMNS,
    KINDS,
    LATENCIES,
    LATENCY_BOUNDS_S,
    LOST,
    RECEIVED,
)
from jellybean.ledger.readings import Counts, RequestKey, Sent, SentKey
from jellybean.serving.outcomes import OutcomeKind
from jellybean_agent import LiveCounters, parse_identity
from jellybean_protos.plan_format import qualified_name

_CLIENT, _SOURCE = "client", "source"  # what a row is about
_BYTES = 0  # column of a source's row
_OTHER_SOURCES = (_SOURCE, "", "", "", "")  # beyond the file's rows: of no plan, so without a price


class ServingLog:
    """Counts in a row for each client, and for each source of a plan whose data crosses a link."""

    def __init__(self, counters: LiveCounters, workflow: str) -> None:
        self._counters, self._workflow = counters, workflow

    @property
    def mark(self) -> str:
        """Identifies the file: with another one all counts begin at 0."""
        return self._counters.mark

    def close(self, *, is_written: bool = False) -> None:
        """Close the file; nothing is counted any more. `is_written`: all counts are in the ledger, so it is removed."""
        path = self._counters.path
        self._counters.close()
        if is_written:
            path.unlink(missing_ok=True)  # else rows of plans and clients of long ago would fill it

    def received(self, client: str) -> None:
        """Count a request that arrived. `client`: its URI."""
        self._counters.row((_CLIENT, self._workflow, client))[RECEIVED] += 1

    def ended(self, kind: OutcomeKind, latency_s: float, client: str) -> None:
        """Count a request that has ended."""
        row = self._counters.row((_CLIENT, self._workflow, client))
        row[KINDS[kind.value]] += 1
        if kind is OutcomeKind.ANSWERED:
            row[ANSWERED_US] += round(latency_s * 1e6)
            row[LATENCIES + bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1

    def sent(self, plan: str, source: str, tiers: tuple[str, str], sent_bytes: int) -> None:
        """Count bytes of a source's data that cross a link."""
        self._counters.row((_SOURCE, plan, source, *tiers), _OTHER_SOURCES)[_BYTES] += sent_bytes

    def lose(self, kept: Mapping[str, int]) -> int:
        """Count what the last process had in flight when it was killed as lost; returns how many requests.

        `kept`: client -> requests that wait on disk, which are not lost; those that the last process had no time to
        count as received are. To be called before any request arrives.
        """
        lost, waiting = 0, dict(kept)
        for key, row in self._counters.readings():
            if key and key[0] == _CLIENT:
                open_ones = row[RECEIVED] - sum(row[column] for column in KINDS.values())
                still = waiting.pop(key[-1], 0)
                own = self._counters.row(key)
                own[RECEIVED] += max(0, still - open_ones)
                own[KINDS[LOST]] += max(0, open_ones - still)
                lost += max(0, open_ones - still)
        for client, count in waiting.items():
            self._counters.row((_CLIENT, self._workflow, client))[RECEIVED] += count
        return lost

    def requests(self) -> Mapping[RequestKey, Counts]:
        """The counters of all clients; those beyond the file's rows have an empty name together."""
        found: dict[RequestKey, Counts] = {}
        for key, row in self._counters.readings():
            if not key or key[0] == _CLIENT:
                workflow, uri = key[1:] if key else (self._workflow, "")
                name = RequestKey(workflow, client_name(uri))
                known = found.get(name, (0,) * COLUMNS)
                found[name] = tuple(one + other for one, other in zip(known, row, strict=True))
        return found

    def bytes_by_source(self) -> Mapping[SentKey, Sent]:
        """Bytes of the sources' data that crossed links."""
        return {
            SentKey(plan, source, "", "", tier, to): Sent(float(row[_BYTES]), self.mark)
            for key, row in self._counters.readings()
            if key and key[0] == _SOURCE
            for _, plan, source, tier, to in [key]
        }


def client_name(uri: str) -> str:
    """The name in a client's certificate, or its role if it has none; empty without a certificate.

    Of a client that may call only one of a plan's workflows, WORKFLOW/NAME: others may have its name.
    """
    identity = parse_identity(uri)
    if identity is None:
        return ""
    name = identity.name or identity.role.value
    return qualified_name(identity.own_workflow, name) if identity.own_workflow else name
