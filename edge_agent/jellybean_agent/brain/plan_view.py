"""The parts of a plan that workers and the gateway need: operators, workers, links and routes.

plan_reading.py makes them of a plan document. If a tier of the plan stands for several identical sites, the view lists
the workers, links and routes of each site, and each site is a tier of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jellybean_agent.brain.audit_view import AUDIT_PREFIX, AuditView
from jellybean_agent.brain.plan_figures import PlanFigures
from jellybean_agent.brain.route_table import Group, RouteTable
from jellybean_agent.brain.wiring import EdgeKind, OperatorWiring
from jellybean_agent.system.device import CPU, Device
from jellybean_agent.tensors.ports import PortNames
from jellybean_protos import plan_format


@dataclass(frozen=True, slots=True)
class Fallback:
    """What becomes of requests after a loss. `lost`: what, in words; `closes`: numbers of the plan's routes.

    `weights`: of this view's routes then; empty: in proportion. They sum to the `share` of its requests that is served.
    """

    lost: str
    closes: frozenset[int]
    weights: tuple[float, ...]

    @property
    def share(self) -> float:
        """The share of the requests that is served; the others are refused."""
        return min(1.0, sum(self.weights)) if self.weights else 1.0


@dataclass(frozen=True, slots=True)
class PythonView:
    """A Python function as a variant: `module:name`, its arguments as JSON, the sha256 of the module's source."""

    function: str
    arguments: str
    sha256: str


@dataclass(frozen=True, slots=True)
class OperatorView:
    """An operator with its selected variant: a model file, a Python function, or neither if it cannot be served.

    `depth`: number of fan-outs that are open at the operator. `ports`: name the outputs that count the rows of each
    request of a batch, for an operator that fans out in batches.
    """

    name: str
    variant: str
    wiring: OperatorWiring
    depth: int
    model_path: str | None
    model_sha256: str | None
    output_names: Mapping[str, str]  # downstream -> model output; without an entry the first output
    python: PythonView | None = None
    model_files: tuple[tuple[str, str], ...] = ()  # path and sha256 of each file of the model
    input_names: Mapping[str, str] = field(default_factory=dict)  # upstream -> model input, or "" if it is not named
    state: Mapping[str, str] = field(
        default_factory=dict
    )  # model input -> model output that it takes from the chunk before
    ports: PortNames = field(default_factory=PortNames)

    @property
    def code_sha256(self) -> str | None:
        """Content hash of what it runs: states made by other code do not fit it."""
        return self.model_sha256 if self.python is None else f"{self.python.sha256} {self.python.arguments}"


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link from one tier to another. A bandwidth of None is unlimited."""

    upstream_tier: str
    downstream_tier: str
    bandwidth_bytes_per_s: float | None
    latency_s: float
    price_usd_per_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker of the plan, with the operators that any route assigns to it, and their batch sizes.

    `device_s`: operator -> batch size -> mean seconds of a run on the emulated device; None without emulation.
    `variants`: operator -> the variant that it runs, where workers of the plan run different ones. `loads`: operator ->
    planned fraction of the worker's time. `delays`: operator -> longest time that a request waits
    for others to share its run, in seconds. `device`: on which its models run. `device_memory_bytes`: operator -> most
    of the device's memory that its model may take; empty if the plan does not state it.
    """

    name: str
    tier: str
    operators: tuple[str, ...]
    batches: Mapping[str, int]  # operator -> most requests per run
    device_s: Mapping[str, Mapping[int, float]] | None
    loads: Mapping[str, float] = field(default_factory=dict)
    price_usd_per_h: float = 0.0
    delays: Mapping[str, float] = field(default_factory=dict)
    device: Device = CPU
    device_memory_bytes: Mapping[str, float] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanView:
    """The parts of a plan that serving needs. Messages carry numbers of its `table`.

    If tiers have several sites, a place is one site of the tier with the most sites, with the sites that it sends to.
    `routes`: the routes of the first place, then of the second, and so on. `weights`: of the routes of one place.
    `fallbacks`: for each loss that the plan bears, those that close the fewest routes first.
    `tiers_at`: for each place, the tier of each source.

    `operators`: with the first variant of each; where workers run different variants, `seen_by` gives those of one
    worker. `others`: operator -> its further variants.

    `workflows`: names of the workflows if the plan has several; a route then covers one or more of them. The view of
    one of them (workflow_views.py) has its name in `workflow`, its operators under their own names, and its routes:
    `route_numbers` are theirs among the `plan_routes` of the plan, and `plan_variants` is `variants_of` each worker.
    """

    name: str
    hash: str
    tiers_at: tuple[Mapping[str, str], ...]
    source_outputs: Mapping[str, tuple[tuple[str, EdgeKind], ...]]  # source -> (operator, kind)
    operators: Mapping[str, OperatorView]
    workers: Mapping[str, WorkerView]
    routes: Sequence[Mapping[str, str]]
    weights: tuple[float, ...]
    links: tuple[LinkView, ...]
    figures: PlanFigures
    periodic: bool = False  # whether requests arrive evenly spaced
    eventually: bool = False  # whether requests are kept on disk until they are answered
    others: Mapping[str, tuple[OperatorView, ...]] = field(default_factory=dict)
    groups: Mapping[tuple[str, str], Group] = field(default_factory=dict)  # as in `RouteTable`
    fallbacks: tuple[Fallback, ...] = ()
    workflows: tuple[str, ...] = ()
    workflow: str = ""
    route_numbers: tuple[int, ...] = ()
    plan_routes: int = 0
    plan_variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    audit: AuditView | None = None  # its sources are not in `source_outputs`

    @property
    def served_name(self) -> str:
        """What clients call it: the workflow, of several, or else the plan."""
        return self.workflow or self.name

    @property
    def identity(self) -> str:
        """The workflow in the certificates of its gateway and clients: of several workflows, PLAN/WORKFLOW."""
        return plan_format.qualified_name(self.name, self.workflow) if self.workflow else self.name

    def qualified(self, name: str) -> str:
        """What workers call a source or operator of this view."""
        return plan_format.qualified_name(self.workflow, name) if self.workflow else name

    def own_name(self, name: str) -> str:
        """The name in this view of what workers call `name`."""
        return name.removeprefix(self.qualified(""))

    def owns(self, name: str) -> bool:
        """True if what workers call `name` is a source or operator of this view's workflow."""
        return name.startswith(self.qualified(""))

    def variants_of(self, worker: str) -> Mapping[str, str]:
        """Operator -> the variant that a worker runs, in all workflows of the plan, by the names that workers use."""
        if self.workflow:
            return self.plan_variants.get(worker, {})
        entry = self.workers[worker]
        return {name: entry.variants.get(name, self.operators[name].variant) for name in entry.operators}

    def numbers_in_plan(self, routes: Iterable[int]) -> frozenset[int]:
        """The numbers that the plan gives to routes of one place of this view."""
        return frozenset(self.route_numbers[route] if self.workflow else route for route in routes)

    def plan_route(self, number: int) -> int:
        """The number that workers give to one of this view's routes."""
        if not self.workflow:
            return number
        place, route = divmod(self.table.plain(number), len(self.weights))
        found = place * self.plan_routes + self.route_numbers[route]
        spreads = number >= len(self.routes)
        return found + (len(self.routes) // len(self.weights)) * self.plan_routes if spreads else found

    @property
    def table(self) -> RouteTable:
        """Which worker each message goes to."""
        return RouteTable(self.routes, self.groups)

    @property
    def variants(self) -> Iterator[OperatorView]:
        """Every operator with each of its variants."""
        for name, operator in self.operators.items():
            yield from (operator, *self.others.get(name, ()))

    def workflow_of(self, operator: str) -> str:
        """The workflow of an operator, of several in this view; empty if there is only one."""
        return operator.partition(plan_format.WORKFLOW_SEPARATOR)[0] if self.workflows else ""

    def seen_by(self, worker: str) -> PlanView:
        """The view with the variants that a worker runs; the same view for a worker that the plan does not have."""
        own = self.workers[worker].variants if worker in self.workers else {}
        if not own:
            return self
        operators = {
            name: next(one for one in (operator, *self.others.get(name, ())) if one.variant == own[name])
            if name in own
            else operator
            for name, operator in self.operators.items()
        }
        return replace(self, operators=operators)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Operators whose outputs are the answer."""
        ends = (name for name, operator in self.operators.items() if not operator.wiring.outputs)
        return tuple(name for name in ends if not self.is_of_audit(name))

    def is_of_audit(self, name: str) -> bool:
        """True if an operator belongs to the audit."""
        return self.audit is not None and name.startswith(AUDIT_PREFIX)

    def workers_on(self, route: int, *, is_audit: bool = False) -> frozenset[str]:
        """All workers that a request on a route may reach, or its audit."""
        return self.table.workers(route, lambda name: self.is_of_audit(name) is is_audit)

    def selection_on(self, route: int) -> str:
        """The selection of requests on a route: `detect=small, read=big`; empty if all get the same."""
        workers = self.routes[self.table.plain(route)]
        mixed = {name: self.workers[workers[name]].variants.get(name) for name in self.others if name in workers}
        return plan_format.selection_text(
            {name: variant or self.operators[name].variant for name, variant in mixed.items()}
        )

    @property
    def all_source_outputs(self) -> Mapping[str, tuple[tuple[str, EdgeKind], ...]]:
        """As `source_outputs`, with the sources of an audit."""
        return self.source_outputs if self.audit is None else {**self.source_outputs, **self.audit.source_outputs}

    @property
    def stateful(self) -> tuple[str, ...]:
        """Operators that keep a state by stream."""
        return tuple(name for name, operator in self.operators.items() if operator.state)

    @property
    def serving(self) -> tuple[WorkerView, ...]:
        """Workers that at least one route uses; each has an agent process."""
        return tuple(worker for worker in self.workers.values() if worker.operators)

    def tier_of(self, upstream: str, route: int) -> str:
        """The tier where a source's or operator's output is produced on a route."""
        if upstream not in self.operators:
            return self.tiers_at[self.table.plain(route) // len(self.weights)][upstream]
        return self.workers[self.routes[self.table.plain(route)][upstream]].tier

    def path_length(self, upstream: str, downstream: str) -> int:
        """Number of positions in the fan-out path of a message on this edge."""
        operator = self.operators.get(upstream)
        edges = operator.wiring.outputs if operator else self.all_source_outputs[upstream]
        opens = any(name == downstream and kind == "fan_out" for name, kind in edges)
        return (operator.depth if operator else 0) + opens
