"""What each process may send to a worker: a certificate lets it in, plan and route say what for."""

from __future__ import annotations

from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.transport.inboxes import StreamSource
from jellybean_agent.transport.message_wire import wire_path
from jellybean_agent.transport.reply_address import gateway_key
from jellybean_protos.agent.v1 import agent_pb2

MAX_ID_CHARS = 256  # of a request's id and a stream's; those that gateways give are shorter


class MessageRights:
    """The rights of all senders at one worker.

    Invariant: a message without excess comes from the worker that runs its upstream for its request,
    to the worker that runs its downstream; or from a gateway, with a source's tensor.
    """

    def __init__(self, view: PlanView, worker: str) -> None:
        self._view, self._worker = view, worker
        self._table, self._plain_routes = view.table, len(view.routes)
        wirings = [(name, operator.wiring) for name, operator in view.operators.items()]
        self._fan_outs = {(name, down) for name, wires in wirings for down, kind in wires.outputs if kind == "fan_out"}
        self._most_depth = 1 + max((operator.depth for operator in view.operators.values()), default=0)
        self._gathers = {(up, name) for name, wires in wirings for up, kind in wires.inputs if kind == "gather"}

    def excess(self, wire: agent_pb2.Message, source: StreamSource) -> str:
        """What a message does beyond the rights of its sender, as `it ...`; empty if nothing."""
        stream = wire.stream
        if len(wire.request_id) > MAX_ID_CHARS or (stream and max(len(stream), len(wire.after)) > MAX_ID_CHARS):
            return "gives requests ids longer than any gateway does"
        if source.sender == GATEWAY:
            return self._excess_of_gateway(wire, source)
        if wire.HasField("failure"):
            return "gives up requests, which only their gateway may"
        if source.workflow != self._view.workflow_of(wire.downstream):
            return "sends messages of a workflow on the stream of another"
        return self._excess_on_route(wire, source.sender)

    def _excess_on_route(self, wire: agent_pb2.Message, sender: str) -> str:
        request, route, edge = wire.request_id, wire.route, (wire.upstream, wire.downstream)
        decides = route >= self._plain_routes and len(wire.path) <= self._most_depth  # who runs a child
        path = wire_path(wire) if decides else ()
        if not self._table.runs(sender, route, edge[0], path[:-1] if edge in self._fan_outs else path, request):
            return "sends outputs of an operator that another process runs on the route"
        if not self._table.runs(self._worker, route, edge[1], path[:-1] if edge in self._gathers else path, request):
            return "sends messages that the route leads to another worker"
        return ""

    def _excess_of_gateway(self, wire: agent_pb2.Message, source: StreamSource) -> str:
        if source.gateway != gateway_key(wire.request_id):
            return "sends messages of another gateway's requests"
        if wire.upstream in self._view.operators and not wire.HasField("failure"):
            return "sends outputs of an operator"
        return ""
