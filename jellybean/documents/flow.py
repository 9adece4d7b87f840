"""Request flow through a workflow: kind of every edge, fan-out level and request rate of every operator.

A level is the sequence of fan-outs that no gather has closed yet. A plain edge keeps the level, an edge with a ratio
opens a fan-out, a gather closes the innermost one. All inputs of a join must have the same level and rate, because it
joins messages of the same request. If ratios depend on variants, equal levels imply equal rates for every selection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.workflow import MEASURED, InputSpec, OperatorSpec, SourceSpec, WorkflowDocument
from jellybean_solver import Edge, EdgeKind, rate_text

# Relative tolerance for equal rates at a join, so that a rounded ratio (0.333 for a third) is accepted.
RATE_TOLERANCE = 2e-3
RATES_DIFFER, SOURCES_DIFFER = "rates differ after ratios", "sources of different rates"


@dataclass(frozen=True, slots=True)
class FanOut:
    """A fan-out of one operator's output; all edges from the same output share it.

    `ratio`: mean number of child requests per output. If the ratio depends on the variant (`fixed` is False), the
    smallest ratio in the document, or 1 if the ratios are in the profiles.
    """

    upstream: str
    output: str | None
    ratio: float
    fixed: bool = True


Level = tuple[FanOut, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Request rate and fan-out level at one node (source or operator) of the workflow."""

    rate_per_s: float
    level: Level


@dataclass
class Flow:
    """Edges and streams of the part of a workflow that has no errors.

    `order`: operators in topological order. `problems`: (path in the workflow document, message, hint).
    """

    edges: dict[str, tuple[Edge, ...]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    problems: list[tuple[DocPath, str, str]] = field(default_factory=list)
    origins: dict[str, dict[str, float]] = field(default_factory=dict)  # node -> its sources' rates, per second


def total_rate(source: SourceSpec, sites: Mapping[str, int]) -> float:
    """Requests per second of a source, summed over the sites of its tier."""
    return source.rate_per_s * sites.get(source.tier, 1)


def follow_requests(workflow: WorkflowDocument, sites: Mapping[str, int]) -> Flow:
    """Propagate levels and rates from the sources in topological order.

    Nodes downstream of a problem have no stream.
    """
    flow = Flow()
    operators = workflow.operators
    graph = {name: [e.upstream for e in spec.inputs if e.upstream in operators] for name, spec in operators.items()}
    try:
        flow.order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        flow.problems.append(_cycle(error.args[1][:-1], operators))
        return flow
    for name, source in workflow.sources.items():
        flow.streams[name] = Stream(total_rate(source, sites), ())
        flow.origins[name] = {name: total_rate(source, sites)}
    for name in flow.order:
        _follow(flow, name, operators[name].inputs)
    _check_shared_fan_outs(flow, workflow)
    stays_in = {name: source.stays_in for name, source in workflow.sources.items()}
    for name, edges in flow.edges.items():
        specs = zip(edges, operators[name].inputs, strict=True)
        flow.edges[name] = tuple(_restrict(edge, spec.stays_in, stays_in.get(edge.upstream)) for edge, spec in specs)
    return flow


def _cycle(members: list[str], operators: Mapping[str, OperatorSpec]) -> tuple[DocPath, str, str]:
    """(path, message, hint) of a cycle. The path is that of the edge into the member that the document lists first."""
    first = min(range(len(members)), key=lambda index: list(operators).index(members[index]))
    members = [*members[first:], *members[:first]]
    closing = [edge.upstream for edge in operators[members[0]].inputs].index(members[-1])
    path: DocPath = ("operators", members[0], "inputs", closing)
    return (
        path,
        f"the operators form a cycle: {' -> '.join([*members, members[0]])}",
        "remove one of these edges",
    )


def _follow(flow: Flow, name: str, inputs: tuple[InputSpec, ...]) -> None:
    path: DocPath = ("operators", name, "inputs")
    if any(edge.upstream not in flow.streams for edge in inputs):
        return
    upstreams = [flow.streams[edge.upstream] for edge in inputs]
    depths = [len(stream.level) - (1 if edge.gather else 0) for edge, stream in zip(inputs, upstreams, strict=True)]
    edges: list[Edge] = []
    streams: list[Stream] = []
    for index, (spec, stream) in enumerate(zip(inputs, upstreams, strict=True)):
        deeper = len(inputs) > 1 and len(stream.level) == min(depths) + 1
        closes = spec.gather or (spec.ratio is not None and deeper)
        if closes and not stream.level:
            message = f"gathers {spec.upstream}, but no fan-out is open at this point"
            flow.problems.append(((*path, index), message, "remove gather, or give an upstream edge a ratio"))
            return
        edge, after = _edge(name, spec, stream, closes=closes)
        if closes and spec.ratio is not None and not stream.level[-1].fixed:
            message = f"this edge closes the fan-out of {stream.level[-1].upstream}, whose ratio depends on the variant"
            flow.problems.append(((*path, index), message, "write gather: true instead of a ratio"))
            return
        if closes and spec.ratio is not None and not _close(spec.ratio * stream.level[-1].ratio, 1.0):
            rates = [
                up.rate_per_s * min((e.ratios or {}).values(), default=1.0)
                for e, up in zip(inputs, upstreams, strict=True)
            ]
            flow.problems.append(((*path, index), *_rates_differ(name, inputs, rates)))
            return
        edges.append(edge)
        streams.append(after)
    origins = [flow.origins[edge.upstream] for edge in inputs]
    problem = _join(name, inputs, streams, origins)
    if problem is not None:
        flow.problems.append((path, *problem))
        return
    flow.edges[name] = tuple(edges)
    flow.streams[name] = streams[0]
    flow.origins[name] = {source: rate for each in origins for source, rate in each.items()}


def _edge(name: str, spec: InputSpec, stream: Stream, *, closes: bool) -> tuple[Edge, Stream]:
    if closes:
        ratio = 1.0 / stream.level[-1].ratio
        after = Stream(stream.rate_per_s * ratio, stream.level[:-1])
        return Edge(spec.upstream, name, EdgeKind.GATHER, ratio, spec.output), after
    if spec.ratios is not None:
        ratio = min(spec.ratios.values(), default=1.0)
        level = (*stream.level, FanOut(spec.upstream, spec.output, ratio, spec.ratio is not None))
        edge = Edge(spec.upstream, name, EdgeKind.FAN_OUT, ratio, spec.output)
        return edge, Stream(stream.rate_per_s * ratio, level)
    return Edge(spec.upstream, name, EdgeKind.EACH, 1.0, spec.output), stream


def _restrict(edge: Edge, *limits: tuple[str, ...] | None) -> Edge:
    """The edge with its data restricted to the tiers that are in all `limits`; a limit of None allows every tier."""
    given = [limit for limit in limits if limit is not None]
    if not given:
        return edge
    return replace(edge, tiers=tuple(tier for tier in given[0] if all(tier in limit for limit in given)))


def _rates_differ(name: str, inputs: tuple[InputSpec, ...], rates: list[float]) -> tuple[str, str]:
    figures = ", ".join(f"{edge.upstream} {rate_text(rate)}" for edge, rate in zip(inputs, rates, strict=True))
    hint = "a join needs one message per input and request: write a ratio that makes the rates equal, or gather: true"
    return f"{name} joins inputs whose {RATES_DIFFER}: {figures}", hint


def _sources_differ(name: str, origins: list[dict[str, float]]) -> tuple[str, str] | None:
    """(message, hint) if a join's inputs come from sources of different rates."""
    rates = {source: rate for each in origins for source, rate in each.items()}
    first = next(iter(rates.values()))
    if all(_close(rate, first) for rate in rates.values()):
        return None
    figures = ", ".join(f"{source} {rate_text(rate)}" for source, rate in rates.items())
    settings = " and ".join(f"sources.{source}.rate" for source in rates)
    hint = (
        f"a request has one message of each source: make {settings} equal, in all sites together (send the slower "
        "source's last message again, or fewer messages of the faster one), or make them two workflows"
    )
    return f"{name} joins data of {SOURCES_DIFFER}: {figures}", hint


def _join(
    name: str, inputs: tuple[InputSpec, ...], streams: list[Stream], origins: list[dict[str, float]]
) -> tuple[str, str] | None:
    rates = [stream.rate_per_s for stream in streams]
    if not all(_close(rate, rates[0]) for rate in rates):
        if not any(stream.level for stream in streams) and (differ := _sources_differ(name, origins)) is not None:
            return differ
        return _rates_differ(name, inputs, rates)
    if any(_rows(stream.level) != _rows(streams[0].level) for stream in streams):
        levels = ", ".join(f"{e.upstream} {_describe_level(s.level)}" for e, s in zip(inputs, streams, strict=True))
        hint = "close a fan-out with {from: ..., gather: true} before or at the join"
        return f"{name} joins requests of different fan-outs: {levels}", hint
    return None


def _rows(level: Level) -> tuple[tuple[str, str | None], ...]:
    return tuple((fan.upstream, fan.output) for fan in level)


def _describe_level(level: Level) -> str:
    return f"inside the fan-out of {' and '.join(fan.upstream for fan in level)}" if level else "outside any fan-out"


def _check_shared_fan_outs(flow: Flow, workflow: WorkflowDocument) -> None:
    """Report edges that fan out the same output with different ratios: they create the same child requests."""
    seen: dict[tuple[str, str | None], tuple[str, InputSpec]] = {}
    for name, edges in flow.edges.items():
        for index, (edge, spec) in enumerate(zip(edges, workflow.operators[name].inputs, strict=True)):
            if edge.kind is not EdgeKind.FAN_OUT:
                continue
            downstream, first = seen.setdefault((edge.upstream, edge.output), (name, spec))
            if not _same(first, spec):
                figures = f"{_describe_ratio(spec)} here, {_describe_ratio(first)} to {downstream}"
                message = f"different ratios for one output of {edge.upstream}: {figures}"
                path: DocPath = ("operators", name, "inputs", index)
                if len(workflow.operators[name].inputs) > index:
                    path = (*path, "ratio")
                flow.problems.append((path, message, "write one ratio, or name another output"))


def _same(first: InputSpec, second: InputSpec) -> bool:
    left, right = first.ratios or {}, second.ratios or {}
    return left.keys() == right.keys() and all(_close(left[variant], right[variant]) for variant in left)


def _describe_ratio(spec: InputSpec) -> str:
    by_variant = ", ".join(f"{variant} {ratio:g}" for variant, ratio in spec.by_variant.items())
    return f"{spec.ratio:g}" if spec.ratio is not None else by_variant or MEASURED


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=RATE_TOLERANCE)
