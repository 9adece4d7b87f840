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
    LATENCY_TOLERANCE,
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
    LeastRelaxation,
)
from jellybean_solver.explanation.counterfactuals import (
    Counterfactual,
    DeadlineResult,
    ResolveSettings,
    plan_differences,
)
from jellybean_solver.explanation.explain import (
    Explanation,
    LimitAnalysis,
    explain,
)
from jellybean_solver.explanation.forced_choices import (
    Question,
    WhyNot,
)
from jellybean_solver.explanation.relaxations import (
    Requirement,
    RequirementKind,
)
from jellybean_solver.fleet.dispatch import (
    DEFAULT_GAP,
    is_large,
)
from jellybean_solver.frontier.curves import (
    Corner,
    CostAccuracy,
    CostRate,
    Progress,
    RatePoint,
    cost_accuracy,
    cost_rate,
)
from jellybean_solver.latency.estimate import (
    mean_waits_s,
    p99_by_workflow,
)
from jellybean_solver.migration.migration_cost import (
    Migration,
    MigrationPrices,
    load_prices,
)
from jellybean_solver.migration.plan_matching import (
    HostedModel,
)
from jellybean_solver.model.accuracy import (
    AccuracyModel,
    AccuracyRow,
    EndToEnd,
    Independent,
    PerOperator,
)
from jellybean_solver.model.deadline_shares import (
    deadline_s,
    deadline_shares,
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
    combine_workflows,
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
    WORKFLOW_SEPARATOR,
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
    ACCURACY_TOLERANCE,
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
    head_name,
    planned_cuts,
    problem_as_planned,
    qualified_cuts,
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
    LEAST_SAVED_SHARE,
    SAVING_TOLERANCE,
    Replanned,
    ReplanSettings,
    SearchSettings,
    Verdict,
    replan,
)
from jellybean_solver.replanning.replan_cut_models import (
    replan_cut,
)
from jellybean_solver.simulation.interfaces import (
    MakeTimes,
)
from jellybean_solver.simulation.replay import (
    Replay,
    replay,
)
from jellybean_solver.simulation.replay_intervals import (
    ReplayInterval,
)
from jellybean_solver.simulation.result import (
    SimulationResult,
)
from jellybean_solver.simulation.simulator import (
    SimulationSettings,
    simulate,
)
from jellybean_solver.simulation.sustained import (
    DEFAULT_WINDOW_S,
    RATE_TOLERANCE,
    grace_s,
    highest_sustained,
    is_sustained,
)
from jellybean_solver.simulation.target_breaches import (
    TargetBreach,
)
from jellybean_solver.simulation.trace import (
    RateTrace,
    rate_trace,
)

__all__ = [
    "ACCURACY_TOLERANCE",
    "COST_TOLERANCE",
    "DEFAULT_GAP",
    "DEFAULT_WINDOW_S",
    "GIB",
    "LATENCY_TOLERANCE",
    "LEAST_SAVED_SHARE",
    "LEAST_SHARE",
    "RATE_TOLERANCE",
    "SAVING_TOLERANCE",
    "VALUE_TOLERANCE",
    "WORKFLOW_SEPARATOR",
    "AccuracyModel",
    "AccuracyRow",
    "Arrivals",
    "Baseline",
    "Certificate",
    "Conflict",
    "Corner",
    "Cost",
    "CostAccuracy",
    "CostRate",
    "Counterfactual",
    "Cut",
    "Cuts",
    "DeadlineResult",
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
    "LeastRelaxation",
    "LimitAnalysis",
    "Link",
    "LinkUse",
    "MakeTimes",
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
    "ReplanSettings",
    "Replanned",
    "Replay",
    "ReplayInterval",
    "RequestStream",
    "Requirement",
    "RequirementKind",
    "ResolveSettings",
    "Room",
    "Route",
    "RouteDrawer",
    "SearchSettings",
    "ServiceTime",
    "Sharing",
    "SimulationResult",
    "SimulationSettings",
    "Slo",
    "Solution",
    "SolverError",
    "Source",
    "Stage",
    "TargetBreach",
    "Termination",
    "Times",
    "Variant",
    "Verdict",
    "WhyNot",
    "WorkerChange",
    "arrival_times",
    "baselines",
    "best_batch",
    "combine_workflows",
    "cost_accuracy",
    "cost_rate",
    "deadline_s",
    "deadline_shares",
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
    "load_prices",
    "mean_waits_s",
    "p99_by_workflow",
    "plan_diff",
    "plan_differences",
    "planned_cuts",
    "problem_as_planned",
    "qualified_cuts",
    "quantile_mean",
    "rate_trace",
    "replan",
    "replan_cut",
    "replay",
    "request_streams",
    "simulate",
    "solve",
    "solve_cut",
    "termination_of",
    "tier_at",
    "to_document",
    "unbatched",
    "with_headroom",
    "worker_at",
]
