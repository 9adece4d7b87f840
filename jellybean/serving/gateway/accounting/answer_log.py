"""Keeps small answers that have an id until the recorder writes them, so that labels may come later."""

from __future__ import annotations

import time
from collections import deque

from jellybean.ledger.answers import MAX_ANSWER_BYTES, KeptAnswer
from jellybean.serving.gateway.accounting.serving_log import client_name
from jellybean.serving.gateway.requests.admission import MAX_ID_BYTES
from jellybean.serving.gateway.requests.request import Attempt
from jellybean.serving.outcomes import Tensors
from jellybean.serving.spool.delivery import Key
from jellybean_agent import PlanView
from jellybean_protos.gateway.v1 import gateway_pb2

MOST = 10_000  # answers between two intervals; the oldest go


class AnswerLog:
    """Answers since the last `take`."""

    def __init__(self) -> None:
        self._answers: deque[KeptAnswer] = deque(maxlen=MOST)

    def keep(self, key: Key, attempt: Attempt | None, outputs: Tensors) -> None:
        """Keep an answer unless it is large, or its id is none that every database takes. `attempt`: that gave it."""
        size = sum(len(tensor.data) for tensor in outputs.values())
        if attempt is None or "\0" in key.id or len(key.id) > MAX_ID_BYTES or size > MAX_ANSWER_BYTES:
            return
        view = attempt.plan.view
        route = view.table.plain(attempt.route)
        self._answers.append(
            KeptAnswer(
                client_name(key.caller),
                key.id,
                time.time(),
                view.served_name,
                view.hash,
                view.selection_on(route),
                site_name(view, route),
                gateway_pb2.InferResponse(outputs=outputs).SerializeToString(),
            )
        )

    @property
    def is_empty(self) -> bool:
        """True if no answer waits to be written."""
        return not self._answers

    def take(self) -> list[KeptAnswer]:
        """The answers, which are forgotten here."""
        taken, self._answers = self._answers, deque(maxlen=MOST)
        return list(taken)

    def give_back(self, answers: list[KeptAnswer]) -> None:
        """Keep them longer: they could not be written."""
        self._answers = deque([*answers, *self._answers], maxlen=MOST)


def site_name(view: PlanView, route: int) -> str:
    """The site of a route's first source; empty in a plan without sites."""
    places = len(view.routes) // len(view.weights)
    return next(iter(view.tiers_at[route // len(view.weights)].values())) if places > 1 else ""
