"""The load of streams: which held-out row each request sends, and its place in which stream."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from jellybean_agent import Array
from jellybean_protos.gateway.v1 import gateway_pb2


class StreamRows:
    """Live streams that send held-out streams chunk by chunk, in turn; one that has sent its rows begins the next.

    `stream_ids`: the stream of each held-out row. `streams`: number of streams that are live at a time.
    """

    def __init__(self, stream_ids: Array, streams: int) -> None:
        rows: dict[int, list[int]] = {}
        for row, stream in enumerate(stream_ids.tolist()):
            rows.setdefault(stream, []).append(row)
        self._rows = list(rows.values())
        self._run = uuid.uuid4().hex[:8]
        self._begun = 0
        self._live: list[tuple[str, Sequence[int], int]] = [self._begin() for _ in range(streams)]
        self._turn = 0

    def _begin(self) -> tuple[str, Sequence[int], int]:
        """A new stream: name, its rows, chunks sent."""
        rows = self._rows[self._begun % len(self._rows)]
        self._begun += 1
        return f"bench-{self._run}-{self._begun}", rows, 0

    def draw(self, count: int) -> tuple[list[int], list[bytes]]:
        """Row and place of each of the next requests."""
        rows, places = [], []
        for _ in range(count):
            index, self._turn = self._turn, (self._turn + 1) % len(self._live)
            name, of_stream, sent = self._live[index]
            ends = sent + 1 == len(of_stream)
            stream = gateway_pb2.Stream(id=name, begins=sent == 0, ends=ends)
            rows.append(of_stream[sent])
            places.append(gateway_pb2.InferRequest(stream=stream).SerializeToString())
            self._live[index] = self._begin() if ends else (name, of_stream, sent + 1)
        return rows, places
