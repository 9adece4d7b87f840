"""Workflows: sources, operators, the edges between them, and the variants of an operator with their profiles.

All quantities are SI (seconds, bytes, per second).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from jellybean_protos import plan_format
from jellybean_solver.errors import SolverError
from jellybean_solver.model.accuracy import AccuracyModel
from jellybean_solver.model.audit import Audit
from jellybean_solver.model.model_ref import ModelRef
from jellybean_solver.model.targets import NO_TARGETS, Slo

# Between a workflow's name and an operator's or source's, if there are several workflows.
WORKFLOW_SEPARATOR = plan_format.WORKFLOW_SEPARATOR
LEAST_BATCH_SAVING = 0.02  # fraction of the time per request that a larger batch must save; less is measurement noise


class EdgeKind(StrEnum):
    """How many downstream requests one upstream request produces."""

    EACH = "each"  # one request for one
    FAN_OUT = "fan_out"  # each row of the output becomes one child request; `ratio` is their mean number
    GATHER = "gather"  # one request per parent: waits for all children of the innermost open fan-out


class Arrivals(StrEnum):
    """Arrival process of a source's requests."""

    POISSON = "poisson"
    PERIODIC = "periodic"


class Deliver(StrEnum):
    """What happens to a request that misses its deadline: it fails, or it is kept until it can be answered."""

    IN_TIME = "in_time"
    EVENTUALLY = "eventually"


@dataclass(frozen=True, slots=True)
class Source:
    """Where data originates. `message_bytes`: data of one request; `rate_per_s`: requests per second in one site."""

    name: str
    tier: str
    rate_per_s: float
    message_bytes: float
    arrivals: Arrivals = Arrivals.POISSON
    deliver: Deliver = field(default=Deliver.IN_TIME, metadata={"said": "where it is not the default"})
    streams: int = field(
        default=0, metadata={"said": "unless 0"}
    )  # that its rate is made of; 0: no operator has a state


@dataclass(frozen=True, slots=True)
class Edge:
    """Data flow from a source or operator to an operator.

    `ratio` is the mean number of downstream requests per upstream request: 1 for EACH, the mean number of children for
    FAN_OUT (0.3: fewer requests; 4: more), and the inverse of that mean for GATHER. If the ratio depends on the
    upstream's variant, a problem states the smallest one and a plan that of the chosen variant. `tiers`: the tiers
    between which this edge's data may flow (residency); None: all tiers.
    """

    upstream: str
    downstream: str
    kind: EdgeKind = EdgeKind.EACH
    ratio: float = 1.0
    output: str | None = None  # name of the model output that is sent; None: the first
    tiers: tuple[str, ...] | None = None


class GraphNode(Protocol):
    """An operator of a problem or of a plan."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[Edge, ...]: ...


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Time that one batch keeps a worker busy.

    `load_s`: seconds with which plans compute load and capacity. `quantiles`: measured (probability, seconds) in
    ascending order; `mean_s`: mean to which the simulator rescales samples from the quantiles.
    """

    load_s: float
    mean_s: float
    quantiles: tuple[tuple[float, float], ...] = ()


Times = Mapping[int, ServiceTime]  # batch size -> time of one batch


def request_s(times: Times, batch: int) -> float:
    """Seconds of a worker's time per request in full batches of size `batch`, from `load_s`."""
    return times[batch].load_s / batch


def best_batch(times: Times) -> int:
    """The smallest batch size whose time per request no other size undercuts by more than `LEAST_BATCH_SAVING`."""
    least = min(request_s(times, size) for size in times)
    return min(size for size in times if request_s(times, size) * (1.0 - LEAST_BATCH_SAVING) <= least)


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `first` to `last` (from 1) of the `layers` layers of `variant`: one part of a model that is cut in two."""

    operator: str
    variant: str
    first: int
    last: int
    layers: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One model that can implement an operator, with its profile on each worker pool."""

    name: str
    service: Mapping[str, Times]  # pool -> times by batch size; without size 1 the variant cannot run in the pool
    message_bytes: Mapping[str, float]  # downstream operator -> bytes of one message on that edge
    memory_bytes: Mapping[str, float] = field(default_factory=dict)  # pool -> bytes of the loaded model with its batch
    model: ModelRef | None = None
    children: tuple[float, ...] = ()  # fraction of outputs with 0, 1, 2, ... rows; empty if not measured
    ratios: Mapping[str, float] = field(default_factory=dict)  # downstream operator -> this variant's fan-out ratio
    stage: Stage | None = None  # set if the variant is one part of a model that is cut in two (forms.py)
    device_memory_bytes: Mapping[str, float] = field(default_factory=dict)  # pool -> bytes of the device's own memory
    counts_rows: bool = False  # the rows of a batch that it fans out or gathers can be told apart by request


@dataclass(frozen=True, slots=True)
class Form:
    """Operators in topological order, each of one variant, that together stand for the one that the last is named as.

    `accuracy`: of the workflow with this form; None if it is that of the last operator's variant. `has_one_output`:
    readers get the only output of the last operator, whatever output they name.
    """

    operators: tuple[Operator, ...]
    accuracy: AccuracyModel | None = None
    has_one_output: bool = False

    @property
    def name(self) -> str:
        """The operator that it stands for."""
        return self.operators[-1].name

    @property
    def variant(self) -> str:
        """The variant of that operator: its cascade, or the model that is cut."""
        return self.operators[-1].variants[0].name

    @property
    def is_cut(self) -> bool:
        """True for a model that is cut in two."""
        return self.operators[-1].variants[0].stage is not None

    def readers(self, upstream: str) -> tuple[str, ...]:
        """The operators of the form that read an operator or source outside it."""
        return tuple(one.name for one in self.operators if any(edge.upstream == upstream for edge in one.inputs))


@dataclass(frozen=True, slots=True)
class Operator:
    """A logical node of the workflow. `forms`: of which a plan may choose one instead of a variant (forms.py)."""

    name: str
    inputs: tuple[Edge, ...]
    variants: tuple[Variant, ...]
    tiers: tuple[str, ...] | None = None  # where it may run; None: anywhere
    batch_delay_s: float = 0.0  # longest time that a request waits for its batch to fill
    state: tuple[tuple[str, str], ...] = ()  # (input, output) of the models that a stream's next chunk takes
    forms: tuple[Form, ...] = field(default=(), metadata={"said": "if there are any"})

    @property
    def parts(self) -> tuple[Operator, ...]:
        """The operator itself, and those of its forms."""
        return (self, *(part for form in self.forms for part in form.operators))

    def with_variants(self, change: Callable[[Variant], Variant | None]) -> Operator:
        """The operator with its variants changed, also those of its forms; None leaves out the variant or the form."""
        variants = tuple(own for variant in self.variants if (own := change(variant)) is not None)
        parts = ((form, tuple(part.with_variants(change) for part in form.operators)) for form in self.forms)
        forms = tuple(replace(form, operators=own) for form, own in parts if all(part.variants for part in own))
        return replace(self, variants=variants, forms=forms)

    def variant(self, name: str) -> Variant:
        """The variant called `name`; KeyError when there is none."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)


def qualified_name(workflow: str, name: str) -> str:
    """The name of a source or operator of one of several workflows."""
    return plan_format.qualified_name(workflow, name)


@dataclass(frozen=True, slots=True)
class Workflow:
    """One of several workflows on one fleet, with its own targets; the budget covers all of them.

    Its sources and operators are called `name`/..., so that workflows share no name. `worth_usd_per_h`: a plan may
    leave it out if serving it costs more than that, or nothing is left for it; None: it must be served. `priority`: no
    workflow is left out for others of a lower one.
    """

    name: str
    slo: Slo = NO_TARGETS
    worth_usd_per_h: float | None = field(default=None, metadata={"said": "if it is stated"})
    priority: int = field(default=0, metadata={"said": "unless 0"})
    owner: str = field(default="", metadata={"said": "if it is stated"})
    audit: Audit | None = field(default=None, metadata={"said": "if there is one"})


def along_graph(operators: Iterable[GraphNode], at_sources: Mapping[str, float]) -> dict[str, float]:
    """Source or operator -> a figure of its requests, which each fan-out and gather multiplies by its ratio."""
    found = dict(at_sources)
    for operator in operators:
        edge = operator.inputs[0]
        found[operator.name] = found[edge.upstream] * edge.ratio
    return found


def unbatched(edges: Sequence[Edge]) -> frozenset[str]:
    """Operators that run one request at a time unless their variant tells the rows of requests apart (`counts_rows`).

    These gather, or their output is fanned out.
    """
    gathering = {edge.downstream for edge in edges if edge.kind is EdgeKind.GATHER}
    return frozenset(gathering | {edge.upstream for edge in edges if edge.kind is EdgeKind.FAN_OUT})


def with_ratios(operators: Sequence[Any], pick: Callable[..., float]) -> tuple[Any, ...]:
    """The operators with each fan-out's ratio set to `pick` (min or max) of its variants' ratios.

    Takes and returns operators of a problem or a plan in topological order. A GATHER gets the inverse of the fan-out
    that it closes.
    """
    known = {operator.name: operator for operator in operators}
    levels: dict[str, tuple[float | None, ...]] = {}  # node -> picked ratios of its open fan-outs; None: unchanged

    def followed(edge: Edge) -> tuple[Edge, tuple[float | None, ...]]:
        level = levels.get(edge.upstream, ())
        if edge.kind is EdgeKind.GATHER:
            closes = level[-1] if level else None
            return (edge if closes is None else replace(edge, ratio=1.0 / closes)), level[:-1]
        upstream = known.get(edge.upstream)
        if edge.kind is EdgeKind.EACH or upstream is None:
            return edge, level if edge.kind is EdgeKind.EACH else (*level, None)
        own = [v.ratios[edge.downstream] for v in upstream.variants if edge.downstream in v.ratios]
        if not own:
            return edge, (*level, None)
        if len(own) < len(upstream.variants):
            raise SolverError(f"only some variants of {upstream.name} have a ratio to {edge.downstream}")
        ratio = pick(own)
        return replace(edge, ratio=ratio), (*level, ratio)

    found = []
    for operator in operators:
        inputs = [followed(edge) for edge in operator.inputs]
        levels[operator.name] = inputs[0][1]
        found.append(replace(operator, inputs=tuple(edge for edge, _ in inputs)))
    return tuple(found)
