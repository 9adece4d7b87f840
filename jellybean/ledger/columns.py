"""What is counted of requests: how they ended, and their latencies by bucket."""

from __future__ import annotations

LATENCY_BOUNDS_S = tuple(round(0.0005 * 1.3**step, 6) for step in range(46))  # histogram buckets, up to 67 s
LOST = "lost"  # in flight when the gateway was killed
ENDS = ("answered", "cancelled", "late", "shed", "client_error", "unavailable", "server_error", LOST)
RECEIVED, ANSWERED_US = 0, 1  # columns of a client's counters; microseconds of answered requests together
KINDS = {kind: 2 + number for number, kind in enumerate(ENDS)}  # how requests ended -> column
LATENCIES = 2 + len(ENDS)  # first column of the histogram
COLUMNS = LATENCIES + len(LATENCY_BOUNDS_S) + 1
