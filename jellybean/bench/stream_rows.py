"""The load of streams: which held-out row each request sends, and its place in which stream."""

from __future__ import annotations

import itertools
import uuid

from jellybean_agent import Array
from jellybean_protos.gateway.v1 import gateway_pb2


class StreamRows:
    """Streams that send held-out streams chunk by chunk, in turn; one that has sent its rows begins the next.

    `stream_ids`: the stream of each held-out row.
    """

    def __init__(self, stream_ids: Array) -> None:
        rows: dict[int, list[int]] = {}
        for row, stream in enumerate(stream_ids.tolist()):
            rows.setdefault(stream, []).append(row)
        self._rows = list(rows.values())
        self._run = uuid.uuid4().hex[:8]

    def draw(self, count: int, streams: int) -> tuple[list[int], list[bytes]]:
        """Row and place of each of the next `count` requests, of `streams` streams that begin anew.

        A stream's name is used again for the next one in its place, so the gateway keeps no more than these.
        """
        begun = itertools.cycle(self._rows)
        live = [(next(begun), 0) for _ in range(streams)]  # rows of each stream, and how many it has sent
        rows, places = [], []
        for index in itertools.islice(itertools.cycle(range(streams)), count):
            of_stream, sent = live[index]
            ends = sent + 1 == len(of_stream)
            stream = gateway_pb2.Stream(id=f"bench-{self._run}-{index}", begins=sent == 0, ends=ends)
            rows.append(of_stream[sent])
            places.append(gateway_pb2.InferRequest(stream=stream).SerializeToString())
            live[index] = (next(begun), 0) if ends else (of_stream, sent + 1)
        return rows, places
