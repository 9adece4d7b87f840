"""What a worker may say of a request: answers of what it runs on the route, and its own failures."""

from __future__ import annotations

import grpc

from jellybean_agent import PlanView, wire_path
from jellybean_protos.agent.v1 import agent_pb2

_UNAVAILABLE = int(grpc.StatusCode.UNAVAILABLE.value[0])


class AnswerRights:
    """The rights of a plan's workers.

    Invariant: a message without excess is of a worker that the attempt's route leads to. An output is
    of an operator that this worker runs for the request. A failure is its own, or that of a peer which
    it could not reach.
    """

    def __init__(self, view: PlanView) -> None:
        self._view, self._table, self._plain_routes = view, view.table, len(view.routes)
        self._prefix = view.qualified("")
        self._most_depth = max((operator.depth for operator in view.operators.values()), default=0)
        self._numbers: dict[int, int] = {}  # route -> its number in messages

    def excess(
        self,
        message: agent_pb2.Message,
        sender: str,
        route: int,
        workers: frozenset[str],
        operators: frozenset[str],
    ) -> str:
        """What a message does beyond the rights of its sender, as `it ...`; empty if nothing.

        `route`: of the attempt, on which `workers` are, and which `operators` answer.
        """
        if message.HasField("failure"):
            return _excess_of_failure(message.failure, sender, workers)
        operator = message.upstream.removeprefix(self._prefix)
        if operator not in operators:
            return "answers for an operator that answers nobody"
        number = self._numbers.get(route)
        if number is None:
            number = self._numbers[route] = self._view.plan_route(route)
        if message.route != number:
            return "answers on another route than that of the request"
        decides = route >= self._plain_routes and len(message.path) <= self._most_depth  # who runs a child
        path = wire_path(message) if decides else ()
        if not self._table.runs(sender, route, operator, path, message.request_id):
            return "answers for an operator that another worker runs on the route"
        return ""


def _excess_of_failure(failure: agent_pb2.Failure, sender: str, workers: frozenset[str]) -> str:
    if sender not in workers:
        return "reports failures of requests whose route does not lead to it"
    if failure.worker != sender and not (failure.status == _UNAVAILABLE and failure.worker in workers):
        return "reports failures in the name of another worker"
    return ""
