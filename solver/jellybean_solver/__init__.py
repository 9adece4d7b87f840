"""Plans ML workflows over edge and cloud: pure functions from problems to plans.

No files, no clock, no network: what needs them is passed in.
"""

from jellybean_solver.baseline.rules import Baseline, baselines
from jellybean_solver.errors import JellyBeanError, OutOfTimeError, SolverError
from jellybean_solver.frontier.curves import Corner, CostAccuracy, CostRate, RatePoint, cost_accuracy, cost_rate
from jellybean_solver.migration.migration_cost import MigrationPrices
from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd, Independent, PerOperator, Row
from jellybean_solver.model.evaluate import Evaluation, evaluate
from jellybean_solver.model.plan import Certificate, Cost, Placement, Plan, PlannedOperator, PlannedWorker, Route
from jellybean_solver.model.problem import (
    Arrivals,
    Edge,
    EdgeKind,
    Link,
    ModelRef,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Variant,
)
from jellybean_solver.model.route_drawing import RouteDrawer
from jellybean_solver.planning.infeasibility import Infeasibility
from jellybean_solver.planning.solver import Solution, solve
from jellybean_solver.replanning.replan import Replanned, Terms, Verdict, replan

__all__ = [
    "AccuracyModel",
    "Arrivals",
    "Baseline",
    "Certificate",
    "Corner",
    "Cost",
    "CostAccuracy",
    "CostRate",
    "Edge",
    "EdgeKind",
    "EndToEnd",
    "Evaluation",
    "Independent",
    "Infeasibility",
    "JellyBeanError",
    "Link",
    "MigrationPrices",
    "ModelRef",
    "Operator",
    "OutOfTimeError",
    "PerOperator",
    "Placement",
    "Plan",
    "PlannedOperator",
    "PlannedWorker",
    "Pool",
    "Problem",
    "RatePoint",
    "Replanned",
    "Route",
    "RouteDrawer",
    "Row",
    "ServiceTime",
    "Sharing",
    "Slo",
    "Solution",
    "SolverError",
    "Source",
    "Terms",
    "Variant",
    "Verdict",
    "baselines",
    "cost_accuracy",
    "cost_rate",
    "evaluate",
    "replan",
    "solve",
]
