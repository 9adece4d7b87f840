"""Plans ML workflows over edge and cloud: pure functions from problems to plans.

No files, no clock, no network: what needs them is passed in. Other packages import from here, never from a room;
`jellybean_solver.pipeline` is the surface of its own.
"""

from jellybean_solver.baseline.rules import (
    Baseline,
    baselines,
)
from jellybean_solver.deadline.capacity_margin import (
    Room,
    in_own_figures,
    with_headroom,
)
from jellybean_solver.deadline.latency_lower_bound import (
    CERTAIN,
    least_latency_s,
)
from jellybean_solver.deadline.search import (
    LEAST_SHARE,
)
from jellybean_solver.demand.demand import (
    Network,
)
from jellybean_solver.diff.plan_diff import (
    PlanDiff,
    WorkerChange,
    plan_diff,
)
from jellybean_solver.errors import (
    JellyBeanError,
    OutOfTimeError,
    SolverError,
)
from jellybean_solver.explanation.conflicts import (
    Conflict,
    Relaxation,
)
from jellybean_solver.explanation.counterfactuals import (
    EQUAL,
    Change,
    Means,
    Settled,
    differences,
)
from jellybean_solver.explanation.explain import (
    Explanation,
    Limit,
    explain,
)
from jellybean_solver.explanation.forced_choices import (
    Question,
    WhyNot,
)
from jellybean_solver.explanation.relaxations import (
    Kind,
    Requirement,
)
from jellybean_solver.fleet.dispatch import (
    GAP,
    is_large,
)
from jellybean_solver.frontier.curves import (
    STEP,
    Corner,
    CostAccuracy,
    CostRate,
    Progress,
    RatePoint,
    cost_accuracy,
    cost_rate,
)
from jellybean_solver.latency.estimate import (
    p99_by_workflow,
    waits,
)
from jellybean_solver.migration.migration_cost import (
    Migration,
    MigrationPrices,
    worth,
)
from jellybean_solver.migration.plan_matching import (
    HostedModel,
)
from jellybean_solver.model.accuracy import (
    AccuracyModel,
    EndToEnd,
    Independent,
    PerOperator,
    Row,
)
from jellybean_solver.model.deadline_shares import (
    deadline_s,
    shares,
)
from jellybean_solver.model.distributions import (
    quantile_mean,
)
from jellybean_solver.model.evaluate import (
    Evaluation,
    evaluate,
)
from jellybean_solver.model.flows import (
    Flow,
    LinkUse,
    flows,
    link_uses,
)
from jellybean_solver.model.multi_workflow import (
    together,
)
from jellybean_solver.model.plan import (
    Certificate,
    Cost,
    Placement,
    Plan,
    PlannedOperator,
    PlannedWorker,
    PlannedWorkflow,
    Route,
)
from jellybean_solver.model.plan_document import (
    PlanDocumentError,
    from_document,
    json_values,
    to_document,
)
from jellybean_solver.model.problem import (
    GIB,
    OF_WORKFLOW,
    Arrivals,
    Deliver,
    Edge,
    EdgeKind,
    Link,
    ModelRef,
    Operator,
    Pool,
    Problem,
    PythonRef,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    Stage,
    Times,
    Variant,
    best_batch,
    unbatched,
)
from jellybean_solver.model.route_drawing import (
    RouteDrawer,
)
from jellybean_solver.model.sites import (
    link_ends,
    tier_at,
    worker_at,
)
from jellybean_solver.model.streams import (
    RequestStream,
    arrival_times,
    request_streams,
)
from jellybean_solver.outcome import (
    COST_TOLERANCE,
    VALUE_TOLERANCE,
    Termination,
    is_gap_closed,
    termination_of,
)
from jellybean_solver.planning.cut_models import (
    Cut,
    Cuts,
    PlannedCut,
    as_planned,
    head_name,
    planned_cuts,
    qualified,
    solve_cut,
)
from jellybean_solver.planning.infeasibility import (
    Infeasibility,
)
from jellybean_solver.planning.solver import (
    Solution,
    solve,
)
from jellybean_solver.replanning.replan import (
    AT_LEAST,
    SAME,
    Replanned,
    Terms,
    Verdict,
    replan,
)
from jellybean_solver.replanning.replan_cut_models import (
    replan_cut,
)
from jellybean_solver.simulation.replay import (
    Break,
    Replay,
    ReplayInterval,
    replay,
)
from jellybean_solver.simulation.result import (
    SimulationResult,
)
from jellybean_solver.simulation.simulator import (
    MakeTimes,
    simulate,
)
from jellybean_solver.simulation.sustained import (
    TOLERANCE,
    WINDOW_S,
    grace_s,
    highest_sustained,
    is_sustained,
)
from jellybean_solver.simulation.trace import (
    RateTrace,
    rate_trace,
)

__all__ = [
    "AT_LEAST",
    "CERTAIN",
    "COST_TOLERANCE",
    "EQUAL",
    "GAP",
    "GIB",
    "LEAST_SHARE",
    "OF_WORKFLOW",
    "SAME",
    "STEP",
    "TOLERANCE",
    "VALUE_TOLERANCE",
    "WINDOW_S",
    "AccuracyModel",
    "Arrivals",
    "Baseline",
    "Break",
    "Certificate",
    "Change",
    "Conflict",
    "Corner",
    "Cost",
    "CostAccuracy",
    "CostRate",
    "Cut",
    "Cuts",
    "Deliver",
    "Edge",
    "EdgeKind",
    "EndToEnd",
    "Evaluation",
    "Explanation",
    "Flow",
    "HostedModel",
    "Independent",
    "Infeasibility",
    "JellyBeanError",
    "Kind",
    "Limit",
    "Link",
    "LinkUse",
    "MakeTimes",
    "Means",
    "Migration",
    "MigrationPrices",
    "ModelRef",
    "Network",
    "Operator",
    "OutOfTimeError",
    "PerOperator",
    "Placement",
    "Plan",
    "PlanDiff",
    "PlanDocumentError",
    "PlannedCut",
    "PlannedOperator",
    "PlannedWorker",
    "PlannedWorkflow",
    "Pool",
    "Problem",
    "Progress",
    "PythonRef",
    "Question",
    "RatePoint",
    "RateTrace",
    "Relaxation",
    "Replanned",
    "Replay",
    "ReplayInterval",
    "RequestStream",
    "Requirement",
    "Room",
    "Route",
    "RouteDrawer",
    "Row",
    "ServiceTime",
    "Settled",
    "Sharing",
    "SimulationResult",
    "Slo",
    "Solution",
    "SolverError",
    "Source",
    "Stage",
    "Termination",
    "Terms",
    "Times",
    "Variant",
    "Verdict",
    "WhyNot",
    "WorkerChange",
    "arrival_times",
    "as_planned",
    "baselines",
    "best_batch",
    "cost_accuracy",
    "cost_rate",
    "deadline_s",
    "differences",
    "evaluate",
    "explain",
    "flows",
    "from_document",
    "grace_s",
    "head_name",
    "highest_sustained",
    "in_own_figures",
    "is_gap_closed",
    "is_large",
    "is_sustained",
    "json_values",
    "least_latency_s",
    "link_ends",
    "link_uses",
    "p99_by_workflow",
    "plan_diff",
    "planned_cuts",
    "qualified",
    "quantile_mean",
    "rate_trace",
    "replan",
    "replan_cut",
    "replay",
    "request_streams",
    "shares",
    "simulate",
    "solve",
    "solve_cut",
    "termination_of",
    "tier_at",
    "to_document",
    "together",
    "unbatched",
    "waits",
    "with_headroom",
    "worker_at",
    "worth",
]
