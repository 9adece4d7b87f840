"""Request streams of a plan or problem: which sources make one request, which operators answer it, its rate."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.errors import SolverError
from jellybean_solver.figures import rate_text
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Problem
from jellybean_solver.model.workflow import WORKFLOW_SEPARATOR, Arrivals, Edge, GraphNode, Source, along_graph

_AUDIT = f"{WORKFLOW_SEPARATOR}audit"  # after a workflow's name: what its audit is called among workflows


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Sources that send one message each for every request. `rate_per_s`: requests per second of all `sites`."""

    sources: tuple[Source, ...]
    entries: tuple[Edge, ...]  # edges out of the sources
    operators: tuple[str, ...]
    sinks: tuple[str, ...]
    rate_per_s: float
    arrivals: Arrivals
    sites: int = 1
    workflow: str = ""  # the name, if there are several workflows; of an audit a name that no workflow has

    @property
    def count(self) -> int:
        """How many streams of equal rate it is made of in each site; 0: its requests are not of streams."""
        return self.sources[0].streams

    @property
    def is_audit(self) -> bool:
        """True if nobody waits for its answers."""
        return self.workflow.endswith(_AUDIT)


def independent_streams_text(plan: Plan | Problem) -> str:
    """Why a workflow cannot be served: its sources form several request streams. Empty if each workflow has only one.

    A gateway takes requests that have a message of every source.
    """
    by_workflow: dict[str, list[RequestStream]] = {}
    for stream in served_streams(plan):
        by_workflow.setdefault(stream.workflow, []).append(stream)
    sentences = []
    for workflow, streams in by_workflow.items():
        if len(streams) > 1:
            listed = "; ".join(
                f"{', '.join(source.name for source in stream.sources)} to {', '.join(stream.operators)}"
                for stream in streams
            )
            sentences.append(
                f"{f'{workflow}: ' if workflow else ''}its sources form {len(streams)} independent request streams "
                f"({listed}): it can be planned and simulated, but not served; to serve it, write one workflow per "
                "stream, in workflows/NAME beside one infrastructure.yaml: `jellybean plan` places them on one fleet "
                "together, and `jellybean up` serves one at a time"
            )
    return "\n".join(sentences)


def served_streams(plan: Plan | Problem) -> tuple[RequestStream, ...]:
    """The streams of requests that clients send: all but those of audits."""
    return tuple(stream for stream in request_streams(plan) if not stream.is_audit)


def whole_streams(plan: Plan | Problem) -> tuple[RequestStream, ...]:
    """The requests that come in streams of which each keeps to one route, as an operator keeps its state."""
    stateful = {operator.name for operator in plan.operators if operator.state}
    every = request_streams(plan) if stateful else ()
    return tuple(one for one in every if one.count and not stateful.isdisjoint(one.operators))


def request_streams(plan: Plan | Problem) -> tuple[RequestStream, ...]:
    """The streams of each workflow, in the order of the sources; that of its audit comes last.

    A workflow whose sources all have one rate is one stream; otherwise there is one stream per weakly connected
    component. SolverError if sources of one component differ in rate.
    """
    parts: dict[str, tuple[list[Source], list[GraphNode]]] = {}
    for workflow in [workflow.name for workflow in plan.workflows] or [""]:
        parts[workflow] = [], []
        if workflow in plan.audits:
            parts[f"{workflow}{_AUDIT}"] = [], []

    def part(name: str) -> tuple[list[Source], list[GraphNode]]:
        return parts[plan.workflow_of(name) + (_AUDIT if plan.is_of_audit(name) else "")]

    for source in plan.sources:
        part(source.name)[0].append(source)
    for operator in plan.operators:
        part(operator.name)[1].append(operator)
    return tuple(replace(stream, workflow=name) for name, own in parts.items() for stream in _streams(plan, *own))


def visits_per_request(plan: Plan | Problem) -> Mapping[str, float]:
    """Operator -> mean number of its runs per request of its stream."""
    return along_graph(plan.operators, dict.fromkeys(plan.source_by_name, 1.0))


def _streams(
    plan: Plan | Problem, sources: Sequence[Source], operators: Sequence[GraphNode]
) -> tuple[RequestStream, ...]:
    """The streams of the sources and operators of one workflow."""
    if len({plan.rate_in_all_sites(source) for source in sources}) == 1:
        return (_stream(plan, sources, operators),)
    group = {name: name for name in (one.name for nodes in (sources, operators) for one in nodes)}

    def find(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for operator in operators:
        for edge in operator.inputs:
            group[find(operator.name)] = find(edge.upstream)
    roots = dict.fromkeys(find(source.name) for source in sources)
    streams = (
        _stream(
            plan,
            [source for source in sources if find(source.name) == root],
            [operator for operator in operators if find(operator.name) == root],
        )
        for root in roots
    )
    return tuple(stream for stream in streams if stream.operators)


def _stream(plan: Plan | Problem, sources: Sequence[Source], operators: Sequence[GraphNode]) -> RequestStream:
    """The stream of these sources. `operators`: those that answer it."""
    first = sources[0]
    rate_per_s = plan.rate_in_all_sites(first)
    for source in sources[1:]:
        if not math.isclose(plan.rate_in_all_sites(source), rate_per_s, rel_tol=1e-9):
            others = f"{source.name} ({rate_text(plan.rate_in_all_sites(source))})"
            raise SolverError(
                f"sources {first.name} ({rate_text(rate_per_s)}) and {others} feed one "
                "workflow, so each request needs a message of both; give them the same rate"
            )
    edges = [edge for operator in operators for edge in operator.inputs]
    fed = {edge.upstream for edge in edges}
    periodic = all(source.arrivals is Arrivals.PERIODIC for source in sources)
    return RequestStream(
        sources=tuple(sources),
        entries=tuple(edge for source in sources for edge in edges if edge.upstream == source.name),
        operators=tuple(operator.name for operator in operators),
        sinks=tuple(operator.name for operator in operators if operator.name not in fed),
        rate_per_s=rate_per_s,
        arrivals=Arrivals.PERIODIC if periodic else Arrivals.POISSON,
        sites=max(plan.sites_of(source.tier) for source in sources),
    )


def arrival_times(
    pieces: Sequence[tuple[float, float]], arrivals: Arrivals, rng: random.Random, phase: float = 0.0
) -> Iterator[float]:
    """Arrival times in seconds for a piecewise constant rate; `pieces`: (end in seconds, requests per second).

    Time rescaling: an arrival is where the integral of the rate reaches the next point of a unit-rate process, with
    exponential steps (Poisson) or steps of 1 (periodic). `phase`: first periodic point (0 to 1), so that periodic
    streams of equal rate do not coincide.
    """
    if arrivals is Arrivals.PERIODIC:
        yield from _evenly(pieces, phase)
        return
    time, step = 0.0, rng.expovariate(1.0)
    for end_s, rate in pieces:
        while rate > 0 and (reached := time + step / rate) < end_s:
            yield reached
            time, step = reached, rng.expovariate(1.0)
        step -= (end_s - time) * rate
        time = end_s


def _evenly(pieces: Sequence[tuple[float, float]], phase: float) -> Iterator[float]:
    start_s, passed, count = 0.0, 0.0, 0  # `passed`: integral of the rate up to `start_s`
    for end_s, rate in pieces:
        while rate > 0 and (time := start_s + (count + phase - passed) / rate) < end_s:
            yield max(time, start_s)  # rounding may put a point just before the start of the piece
            count += 1
        passed += (end_s - start_s) * rate
        start_s = end_s
