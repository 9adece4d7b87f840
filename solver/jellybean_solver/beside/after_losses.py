"""How the requests of a part of a plan spread after a loss, beside other parts that must not be disturbed."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean_solver.model.loss import Loss, RoutesAfterLoss, survivors
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem


class PartAfterLosses:
    """The routes of a part after losses. `problem`: of all parts."""

    def __init__(self, problem: Problem, part: Plan) -> None:
        self.problem, self.part, self.routes = problem, part, RoutesAfterLoss(problem, part)
        self.planned = {one.lost for one in part.fallbacks if one.weights}

    def weights(self, loss: Loss) -> Sequence[float]:
        """The weights of the part's routes after a loss: as planned for it, or of the routes that are left.

        A workflow that does not survive it keeps the weights of its routes that are left, so that no worker gets more
        to do; its other requests are refused.
        """
        spread, closed = self.routes.weights(loss), frozenset(self.routes.closed(loss))
        if str(loss) in self.planned or not closed:
            return spread
        kept = survivors(self.problem, self.part, loss)
        usual = (0.0 if number in closed else route.weight for number, route in enumerate(self.part.routes))
        return [
            after if workflow in kept else left
            for after, left, workflow in zip(spread, usual, self.routes.workflow, strict=True)
        ]
