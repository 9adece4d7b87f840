"""Plans ML workflows over edge and cloud: pure functions from problems to plans.

Nothing here reads files, the clock or the network; a caller passes in a function where one is needed. Other packages
import names from here, not from the subpackages; only `jellybean_solver.pipeline` has a public surface of its own.
Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

from __future__ import annotations

from jellybean_protos.lazy_surface import lazy_surface

_NAMES: dict[str, tuple[str, ...]] = {  # by module
    "baseline.rules": (
        "NO_ASSIGNMENT",
        "Baseline",
        "baselines",
    ),
    "deadline.lower_bound": ("least_latency_s",),
    "deadline.restriction": (
        "with_margin",
        "without_margin",
    ),
    "deadline.search": (
        "Deadline",
        "Judge",
    ),
    "deadline.settings": (
        "DEFAULT_SETTINGS",
        "QUICK_SETTINGS",
        "DeadlineSettings",
    ),
    "demand.demand": ("Network",),
    "diff.plan_diff": (
        "PlanDiff",
        "WorkerChange",
        "plan_diff",
    ),
    "errors": (
        "JellyBeanError",
        "OutOfTimeError",
        "SolverError",
    ),
    "explanation.conflicts": (
        "Conflict",
        "LeastRelaxation",
    ),
    "explanation.counterfactuals": ("Counterfactual",),
    "explanation.explain": (
        "Explanation",
        "LimitAnalysis",
        "explain",
    ),
    "explanation.forced_choices": (
        "Question",
        "WhyNot",
    ),
    "explanation.parts": ("Part",),
    "explanation.plan_differences": ("plan_differences",),
    "explanation.relaxations": (
        "Requirement",
        "RequirementKind",
    ),
    "explanation.resolver": (
        "DeadlineResult",
        "ResolveSettings",
    ),
    "figures": (
        "distinct_durations",
        "distinct_usd",
        "duration_text",
        "number_text",
        "size_text",
        "unit_text",
        "usd_text",
        "without_zeros",
    ),
    "fleet.dispatch": (
        "DEFAULT_GAP",
        "is_large",
    ),
    "frontier.curves": (
        "Corner",
        "CostAccuracy",
        "CostRate",
        "Progress",
        "cost_accuracy",
        "cost_rate",
    ),
    "frontier.mixed_curve": (
        "MixedCurve",
        "MixedPoint",
        "cost_mean_accuracy",
    ),
    "latency.estimate": (
        "CLOSED_FORM_RATIO",
        "mean_waits_s",
        "p99_by_workflow",
    ),
    "latency.hops": ("unqueued_and_hops_s",),
    "migration.migration_cost": (
        "Migration",
        "MigrationPrices",
        "load_prices",
    ),
    "migration.plan_matching": ("HostedModel",),
    "model.accuracy": (
        "AccuracyModel",
        "AccuracyRow",
        "EndToEnd",
        "Independent",
        "PerOperator",
    ),
    "model.deadline_shares": (
        "deadline_s",
        "deadline_shares",
    ),
    "model.distributions": ("quantile_mean", "quantile_points"),
    "model.evaluate": ("evaluate",),
    "model.flows": (
        "Flow",
        "LinkUse",
        "flows",
        "link_uses",
    ),
    "model.loss": (
        "Loss",
        "judged_losses",
        "losses",
        "plan_after",
    ),
    "model.missing_links": (
        "missing_link_text",
        "missing_links",
    ),
    "model.model_ref": (
        "ModelFile",
        "ModelPorts",
        "ModelRef",
        "PythonRef",
    ),
    "model.multi_workflow": ("combine_workflows",),
    "model.plan": (
        "Certificate",
        "Cost",
        "Placement",
        "Plan",
        "PlannedOperator",
        "PlannedWorker",
        "PlannedWorkflow",
        "Route",
    ),
    "model.plan_document": (
        "PlanDocumentError",
        "from_document",
        "json_values",
        "to_document",
    ),
    "model.problem": (
        "CPU",
        "GIB",
        "WORKFLOW_SEPARATOR",
        "Arrivals",
        "Deliver",
        "Edge",
        "EdgeKind",
        "Link",
        "LossKind",
        "Objective",
        "Operator",
        "Pool",
        "Problem",
        "ServiceTime",
        "Sharing",
        "Slo",
        "Source",
        "Stage",
        "Terms",
        "Times",
        "Variant",
        "best_batch",
    ),
    "model.route_drawing": ("RouteDrawer",),
    "model.selection_shares": ("selection_shares",),
    "model.stream_assignment": (
        "StreamAssignment",
        "whole_stream_times",
    ),
    "model.sites": (
        "link_ends",
        "tier_at",
        "worker_at",
    ),
    "model.spreading": ("groups_by_worker",),
    "model.streams": (
        "GraphOperator",
        "RequestGraph",
        "RequestStream",
        "arrival_times",
        "independent_streams_text",
        "request_streams",
    ),
    "outcome": (
        "ACCURACY_TOLERANCE",
        "COST_TOLERANCE",
        "VALUE_TOLERANCE",
        "Clock",
        "Termination",
        "is_gap_closed",
        "termination_of",
    ),
    "planning.addition": (
        "Added",
        "add_workflows",
    ),
    "planning.cut_models": ("least_usd_per_h", "solve_cut"),
    "planning.cut_problem": (
        "Cut",
        "Cuts",
        "PlannedCut",
        "head_name",
        "planned_cuts",
        "problem_as_planned",
        "qualified_cuts",
    ),
    "planning.infeasibility": ("Infeasibility",),
    "planning.many_workflows": ("has_many_workflows",),
    "planning.solve": (
        "SolveOptions",
        "fastest_of_equal_cost",
        "solve",
    ),
    "planning.solver": (
        "Solution",
        "limited",
    ),
    "replanning.by_time": (
        "Period",
        "change",
        "cheapest_sequence",
        "merged_periods",
    ),
    "replanning.replan": (
        "SAVING_TOLERANCE",
        "Replanned",
        "ReplanSettings",
        "SearchSettings",
        "Verdict",
        "removes_enough",
        "replan",
        "replan_cut",
    ),
    "replanning.rescore": ("rescore",),
    "replanning.settings": ("LEAST_SAVED_SHARE",),
    "simulation.interfaces": (
        "MakeTimes",
        "Observer",
        "StopSimulationError",
    ),
    "simulation.replay": (
        "Replay",
        "replay",
    ),
    "simulation.replay_intervals": ("ReplayInterval",),
    "simulation.result": (
        "RequestFigures",
        "SimulationResult",
        "nearest_rank",
    ),
    "simulation.simulator": (
        "SimulationSettings",
        "simulate",
    ),
    "simulation.sustained": (
        "default_window_s",
        "RATE_TOLERANCE",
        "grace_s",
        "highest_sustained",
        "is_sustained",
    ),
    "simulation.target_breaches": ("TargetBreach",),
    "simulation.trace": (
        "RateTrace",
        "rate_trace",
    ),
}

__all__, __getattr__ = lazy_surface(__name__, _NAMES)  # the stub beside this file has the same names
