"""An operator's edges in the DAG, and the messages that a finished work item sends along them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jellybean_agent.brain.messages import (
    DIRECT_CALL_ROUTE,
    GATEWAY,
    EdgeMessage,
    FanOutPath,
    Outputs,
    Payload,
    WorkItem,
)

EdgeKind = Literal["each", "fan_out", "gather"]
SINK_OUTPUTS: tuple[tuple[str, EdgeKind], ...] = ((GATEWAY, "each"),)  # a sink's output edge goes to the gateway


@dataclass(frozen=True, slots=True)
class OperatorWiring:
    """An operator's place in the DAG: (upstream, kind) per input edge, (downstream, kind) per output edge."""

    inputs: tuple[tuple[str, EdgeKind], ...]
    outputs: tuple[tuple[str, EdgeKind], ...]  # empty for a sink, whose output is the answer


def output_messages(
    operator: str, wiring: OperatorWiring, item: WorkItem, until: float, outputs: Outputs
) -> list[EdgeMessage]:
    """The messages that carry a finished item's outputs downstream, the children of a fan-out in order.

    Empty for a direct call. `until`: the request's deadline.
    """
    if item.route == DIRECT_CALL_ROUTE:
        return []
    messages = []
    for downstream, kind in wiring.outputs or SINK_OUTPUTS:
        parts: list[tuple[FanOutPath, Payload]]
        if kind != "fan_out":
            parts = [(item.path, outputs.take(downstream, None))]
        elif (count := outputs.rows(downstream)) > 0:
            parts = [((*item.path, (row, count)), outputs.take(downstream, row)) for row in range(count)]
        else:
            parts = [((*item.path, (0, 0)), None)]
        messages += [
            EdgeMessage(item.request, item.route, operator, downstream, path, payload, until, item.position)
            for path, payload in parts
        ]
    return messages


def empty_messages(
    wiring: OperatorWiring, last_input: EdgeMessage, path: FanOutPath, until: float
) -> list[EdgeMessage]:
    """The messages without payload that an operator below an empty fan-out sends on, so that the gather completes.

    `last_input`: the message that completed the operator's inputs. `path`: the operator's fan-out path.
    """
    return [
        EdgeMessage(
            last_input.request,
            last_input.route,
            last_input.downstream,
            downstream,
            (*path, (0, 0)) if kind == "fan_out" else path,
            until=until,
            position=last_input.position,
        )
        for downstream, kind in wiring.outputs or SINK_OUTPUTS
    ]
