"""Converts a timeline to Chrome's trace format, for chrome://tracing and Perfetto."""

from __future__ import annotations

from typing import Any

from jellybean_solver.pipeline import Timeline

_US_PER_S = 1e6


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The trace as JSON values: one process, one thread per device, one complete event (microseconds) per action."""
    events: list[dict[str, Any]] = []
    for device in range(timeline.schedule.devices):
        name = {"name": f"device {device}"}
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": device, "args": name})
        for timed in timeline.timed_actions(device):
            events.append(
                {
                    "ph": "X",
                    "name": str(timed.action),
                    "cat": timed.action.kind.name.lower(),
                    "pid": 0,
                    "tid": device,
                    "ts": timed.start_s * _US_PER_S,
                    "dur": (timed.end_s - timed.start_s) * _US_PER_S,
                    "args": {"stage": timed.action.stage, "microbatch": timed.action.microbatch},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
