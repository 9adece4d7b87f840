"""The table of all commands: the only place where a command is added besides its own module.

Help, version and shell completion read this table and import no command. A command's module is imported when the
command runs, or when its own help is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PROGRAM = "jellybean"


class CommandRow(NamedTuple):
    """A command or a group. `module`: in this package. `help`: the first sentence of the command's docstring.

    `extras`: those of the distribution that it needs besides `plan`.
    """

    name: str
    module: str
    help: str
    extras: tuple[str, ...] = ()


_K8S = ("k8s",)

PANELS: Mapping[str, tuple[CommandRow, ...]] = {  # in the order of the help
    "Plan": (
        CommandRow(
            "profile",
            "planning.profile",
            "Measure what is missing or stale in profiles.yaml: latency, memory, message sizes and accuracy of all "
            "variants.",
        ),
        CommandRow("plan", "planning.plan", "Choose variants and place operators at minimum cost; writes plan.json."),
        CommandRow(
            "explain",
            "planning.explain",
            "Explain the plan: binding requirements, alternatives, and the value of relaxing each requirement.",
        ),
        CommandRow(
            "frontier",
            "planning.frontier",
            "Compute the Pareto frontier of cost and accuracy, with the cheapest plan of each point; writes a picture.",
        ),
        CommandRow(
            "calendar",
            "planning.calendar",
            "Plan for rates that change with time: a plan for each period, where changing to it pays.",
        ),
        CommandRow(
            "simulate",
            "planning.plan",
            "Predict latency, throughput and the highest sustained rate of the plan by simulation.",
        ),
        CommandRow("diff", "planning.diff", "Compare two plans: cost, latency, variants, workers, models to load."),
    ),
    "Serve": (
        CommandRow(
            "up",
            "serving.serve",
            "Serve the plan on this machine: a gateway and one agent process per worker, with emulated links.",
        ),
        CommandRow(
            "apply",
            "serving.serve",
            "Replace the running plan by plan.json without losing requests: start new workers, switch, stop old ones.",
        ),
        CommandRow("down", "serving.serve", "Drain and stop what `up --detach` or `gateway --detach` started."),
        CommandRow("infer", "serving.infer", "Send one request, or one for each row of a file, and print the answers."),
        CommandRow("gateway", "serving.gateway", "Run the gateway for workers on other machines, over mutual TLS."),
        CommandRow(
            "certs",
            "serving.certs",
            "Issue or renew certificates for the gateway, all workers of the plan, and clients.",
        ),
        CommandRow(
            "token",
            "serving.gateway",
            "Print a token with which one box joins the gateway: jellybean-agent --join GATEWAY --token-file FILE.",
        ),
        CommandRow(
            "demo",
            "serving.measure",
            "Run all steps on the digits example: profile, plan, serve, measure, report; repeats its warnings at the "
            "end.",
        ),
    ),
    "Measure": (
        CommandRow(
            "top",
            "serving.top",
            "Watch the running plan: rates, latency, queues, planned and measured utilisation, cost.",
        ),
        CommandRow(
            "bench",
            "serving.measure",
            "Measure the running plan with held-out inputs, at the rate that it was made for, or at that of --set.",
        ),
        CommandRow(
            "report",
            "serving.measure",
            "Compare predictions and measurements of the newest plan; writes a self-contained HTML page.",
        ),
        CommandRow(
            "cost",
            "serving.accounts.cost",
            "Show what serving cost: workers at their prices, and bytes over links, as recorded meanwhile.",
        ),
        CommandRow(
            "history",
            "serving.accounts.history",
            "Show when which plan was made, simulated, served and measured.",
        ),
        CommandRow(
            "label",
            "serving.accounts.label",
            "Give the right answers of earlier requests, by request id: `jellybean accuracy` judges by them.",
        ),
        CommandRow(
            "accuracy",
            "serving.accounts.accuracy",
            "Show the accuracy of what was served, by labels that came later and by audits, with 95 % intervals.",
        ),
        CommandRow(
            "dashboard",
            "serving.top",
            "Print a Grafana dashboard for the metrics of `up --metrics-port`, or alert rules for Prometheus.",
        ),
    ),
    "Deploy": (
        CommandRow(
            "render",
            "kubernetes.render",
            "Print the plan as Kubernetes objects, with the settings of kubernetes.yaml.",
        ),
        CommandRow(
            "deploy",
            "kubernetes.cluster",
            "Deploy the plan to Kubernetes, to all clusters that kubernetes.yaml names, or one.",
            _K8S,
        ),
        CommandRow(
            "status",
            "kubernetes.cluster",
            "Print the deployed revisions, the serving plan, and why pods do not run.",
            _K8S,
        ),
        CommandRow(
            "rollback",
            "kubernetes.cluster",
            "Deploy an earlier revision again, in all clusters that kubernetes.yaml names, or one.",
            _K8S,
        ),
        CommandRow(
            "undeploy",
            "kubernetes.cluster",
            "Delete all objects of this project's deployments after in-flight requests are answered.",
            _K8S,
        ),
        CommandRow(
            "discover",
            "kubernetes.discover",
            "Write infrastructure.yaml from a cluster's nodes (labels, size, GPUs, taints).",
            _K8S,
        ),
        CommandRow(
            "operator",
            "kubernetes.operator",
            "Plan and deploy Workflow resources of a Kubernetes cluster.",
            ("operator",),
        ),
    ),
    "Train": (
        CommandRow(
            "train",
            "training.train",
            "Train a model as described in training.yaml, resuming from the newest checkpoint.",
            ("train",),
        ),
        CommandRow(
            "pipeline",
            "pipeline.group",
            "Pipeline parallelism: estimate memory and FLOPs; partition a model into stages; simulate, draw and "
            "compare schedules.",
        ),
    ),
    "Documents": (
        CommandRow(
            "init",
            "init",
            "Start a project: copy an example, draft its documents from ONNX files, or write commented skeletons.",
        ),
        CommandRow(
            "validate",
            "documents",
            "Check all documents and print every problem with its file and line, then the TODOs in their comments.",
        ),
        CommandRow("schema", "documents", "Print the JSON Schemas of the documents, for completion in editors."),
    ),
}

_GROUPS: Mapping[str, tuple[CommandRow, ...]] = {  # group -> its commands, in the order of its help
    "pipeline": (
        CommandRow(
            "collectives",
            "pipeline.collectives",
            "Compare all-reduces: total traffic, bottleneck, rounds and time of server, naive, ring, tree and "
            "butterfly.",
        ),
        CommandRow(
            "estimate",
            "pipeline.estimate",
            "Estimate a transformer from its size: parameters, memory, FLOPs, which devices it fits and how many it "
            "needs.",
        ),
        CommandRow(
            "hybrid",
            "pipeline.hybrid",
            "Compare hybrid with data parallelism on a published network: bytes per worker and step, by layer.",
        ),
        CommandRow(
            "profile",
            "pipeline.partition",
            "Profile a model by layer: forward and backward time, activation and parameter bytes, and possible cuts.",
        ),
        CommandRow(
            "plan",
            "pipeline.partition",
            "Partition a model into pipeline stages with replication; prints the optimum, or the best found and its "
            "gap.",
        ),
        CommandRow(
            "simulate",
            "pipeline.schedules",
            "Simulate a schedule: makespan, bubble ratio and peak memory of each device.",
        ),
        CommandRow("draw", "pipeline.schedules", "Draw a schedule's timeline."),
        CommandRow(
            "compare",
            "pipeline.schedules",
            "Compare schedules on one model; with several stages per device, the stages share the device's time "
            "equally.",
        ),
        CommandRow(
            "tensor",
            "pipeline.tensor",
            "Compare tensor with data parallelism for a linear layer: which sends least, and from which batch size on.",
        ),
        CommandRow(
            "wpipe",
            "pipeline.wpipe",
            "Choose WPipe's M:N, workers in a pipeline by pipelines, with the memory of each by batch size.",
        ),
    ),
    "operator": (
        CommandRow(
            "run",
            "kubernetes.operator",
            "Run the operator: plan, deploy, re-plan and undeploy Workflow resources.",
        ),
        CommandRow("crd", "kubernetes.operator", "Print the CustomResourceDefinition of Workflow."),
    ),
}


def rows_of(group: str) -> dict[str, CommandRow]:
    """The commands of the program or of a group, by name, in the order of its help."""
    rows = [row for panel in PANELS.values() for row in panel] if group == PROGRAM else _GROUPS.get(group, ())
    return {row.name: row for row in rows}


def panel_of(command: str) -> str:
    """The heading of the help under which a command of the program stands."""
    return next(panel for panel, rows in PANELS.items() if any(row.name == command for row in rows))


def is_group(command: str) -> bool:
    """True for a command of the program that has commands of its own."""
    return command in _GROUPS


def command_in(arguments: list[str]) -> CommandRow | None:
    """The row of the program's command in a command line; None if there is none."""
    rows = rows_of(PROGRAM)
    word = next((word for word in arguments if not word.startswith("-")), "")
    return rows.get(word)
