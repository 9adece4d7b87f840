"""Bench's load of streams."""

from __future__ import annotations

import numpy as np

from jellybean.bench.stream_rows import StreamRows
from jellybean_protos.gateway.v1 import gateway_pb2


def test_streams_send_their_rows_in_order_and_begin_the_next_under_their_name() -> None:
    rows, places = StreamRows(np.array([5, 7, 5, 7, 7])).draw(10, 2)
    streams = [gateway_pb2.InferRequest.FromString(place).stream for place in places]
    first, second = (list(zip(rows, streams, strict=True))[index::2] for index in range(2))
    assert [(row, stream.begins, stream.ends) for row, stream in first] == [
        (0, True, False),
        (2, False, True),
        (0, True, False),
        (2, False, True),
        (0, True, False),
    ]
    assert [(row, stream.begins, stream.ends) for row, stream in second] == [
        (1, True, False),
        (3, False, False),
        (4, False, True),
        (1, True, False),
        (3, False, False),
    ]
    assert len({stream.id for stream in streams}) == 2
