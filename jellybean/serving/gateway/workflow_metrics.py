"""Metrics of workers as one of several workflows sees them: its own operators, by its own names."""

from __future__ import annotations

import re

from jellybean_agent import PlanView

_OPERATOR = re.compile(rb'operator="([^"]*)"')


def own_metrics(view: PlanView, text: bytes) -> bytes:
    """A worker's metrics (Prometheus' text format) without other workflows' operators; all of a plan of one."""
    if not view.workflow:
        return text
    return (
        b"\n".join(line for line in (_own_line(view, line) for line in text.splitlines()) if line is not None) + b"\n"
    )


def _own_line(view: PlanView, line: bytes) -> bytes | None:
    found = _OPERATOR.search(line)
    if found is None or line.startswith(b"#"):
        return line
    name = found[1].decode()
    return line[: found.start(1)] + view.own_name(name).encode() + line[found.end(1) :] if view.owns(name) else None
