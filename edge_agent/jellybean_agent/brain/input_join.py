"""Joins the inputs of a request at an operator: all input edges, and all children of a gather.

Messages may arrive in any order and more than once; a set of recent joins makes repeated messages harmless.
"""

from __future__ import annotations

from collections.abc import Mapping

from jellybean_agent.brain.held_inputs import NO_CLAIM, Claim, HeldInputs
from jellybean_agent.brain.messages import EdgeMessage, Payload
from jellybean_agent.brain.request_state import PendingInputs, RecentSet, RequestState
from jellybean_agent.brain.wiring import OperatorWiring


class InputJoin:
    """The joins of one worker. `remembered`: number of finished joins whose repeated messages are recognised.

    `route_count`: how many numbers of routes there are. `held`: counts the bytes of messages that are kept.
    """

    def __init__(
        self,
        worker: str,
        wiring: Mapping[str, OperatorWiring],
        route_count: int,
        remembered: int,
        held: HeldInputs | None = None,
    ) -> None:
        self.held = held or HeldInputs(None)
        self._worker, self._wiring, self._route_count = worker, wiring, route_count
        self._edge_kinds = {(up, operator): kind for operator, wires in wiring.items() for up, kind in wires.inputs}
        self._single = {  # operators that have nothing to wait for
            operator for operator, wires in wiring.items() if len(wires.inputs) == 1 and wires.inputs[0][1] != "gather"
        }
        self.finished = RecentSet(remembered)  # (request, operator, child indices)

    def refusal(self, message: EdgeMessage) -> str | None:
        """Why a message does not fit the plan (its sender has another plan, or is faulty); None if it fits."""
        edge = (message.upstream, message.downstream)
        kind = self._edge_kinds.get(edge)
        if kind is None:
            return f"worker {self._worker} has no edge from {edge[0]!r} to {edge[1]!r}"
        if not 0 <= message.route < self._route_count:
            return f"route {message.route} does not exist: the plan has {self._route_count}"
        if kind == "gather" and not message.path:
            return f"{edge[1]!r} gathers the children of {edge[0]!r}, but the message names no child"
        if any(not 0 <= index < max(count, 1) for index, count in message.path):
            return f"the message from {edge[0]!r} to {edge[1]!r} has an impossible child index: {message.path}"
        return None

    def add(
        self, message: EdgeMessage, requests: dict[str, RequestState], claim: Claim = NO_CLAIM
    ) -> PendingInputs | str | None:
        """Add one input. Returns the joined inputs once complete, None before, or as text why the inputs disagree.

        Creates the request's state in `requests`. A message of a finished join is ignored and returns None.
        `claim`: counts in `held` if the message is kept; the joined inputs have those of all their messages.
        """
        operator, request = message.downstream, message.request
        if operator in self._single:
            return self._single_input(message, requests, claim)
        is_gather = self._edge_kinds[message.upstream, operator] == "gather"
        path = message.path[:-1] if is_gather else message.path
        index, count = message.path[-1] if is_gather else (0, 1)
        key = (operator, tuple([position[0] for position in path]))
        if (request, *key) in self.finished:
            return None
        state = requests.get(request)
        if state is None:
            state = requests[request] = RequestState(message.until, claim[0])
        state.until = max(state.until, message.until)
        pending = state.pending.get(key)
        if pending is None:
            pending = state.pending[key] = PendingInputs(path)
        children = pending.children
        if pending.path != path or children.setdefault(message.upstream, count) != count:
            return f"inputs of {operator!r} disagree about the number of children: {pending.path} and {message.path}"
        arrived = pending.arrived.setdefault(message.upstream, {})
        if count and index not in arrived:  # a repeated message changes nothing
            arrived[index] = message.payload
            self._keep(pending, claim)
        if len(children) < len(self._wiring[operator].inputs):
            return None
        for upstream, expected in children.items():
            if len(pending.arrived[upstream]) != expected:
                return None
        del state.pending[key]
        self.finished.add((request, *key))
        return pending

    def _single_input(
        self, message: EdgeMessage, requests: dict[str, RequestState], claim: Claim
    ) -> PendingInputs | None:
        """As `add`, of the only input of an operator."""
        key = (message.request, message.downstream, tuple([position[0] for position in message.path]))
        if key in self.finished:
            return None
        self.finished.add(key)
        state = requests.get(message.request)
        if state is None:
            requests[message.request] = RequestState(message.until, claim[0])
        else:
            state.until = max(state.until, message.until)
        found = PendingInputs(message.path, {message.upstream: {0: message.payload}}, {message.upstream: 1})
        self._keep(found, claim)
        return found

    def _keep(self, pending: PendingInputs, claim: Claim) -> None:
        if claim[1]:
            self.held.add(claim)
            sender, size = claim
            pending.claims[sender] = pending.claims.get(sender, 0) + size

    def inputs(self, operator: str, joined: PendingInputs) -> tuple[Payload | tuple[Payload, ...], ...]:
        """The joined payloads, one entry per input edge; a gather's children as a tuple in the order of their index."""
        return tuple(
            tuple(payload for _, payload in sorted(joined.arrived[upstream].items(), key=_child_index))
            if kind == "gather"
            else joined.arrived[upstream][0]
            for upstream, kind in self._wiring[operator].inputs
        )


def _child_index(child: tuple[int, Payload]) -> int:
    return child[0]
