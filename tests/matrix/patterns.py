"""The blocks and patterns of a draft for the program over everything: shares no code with documents and solver.

For each selection of a workflow the operators become nodes with a rate: a cut model is two, a cascade four.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.brute_force.pattern_program import Block, Fleet, Model, Pair, Pattern, Workers
from tests.matrix.draft import GIB, Cascade, Draft, Link, Operator, Served, Site, Times, Variant, served

BATCH_SAVES = 0.02  # a larger batch must save more of the time per request
LOSSES = {"1 worker": "worker", "1 link": "link", "1 site": "site", "1 spot worker": "spot worker"}


@dataclass(frozen=True)
class Feed:
    """An edge into a node: messages per second, of so many bytes. `stays_in`: tiers that both ends are in."""

    upstream: str
    per_s: float
    size: float
    stays_in: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Node:
    """A model that runs `per_s` times a second. `seconds`: pool -> time of one request."""

    name: str
    variant: str
    per_s: float
    feeds: tuple[Feed, ...]
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    tiers: tuple[str, ...] | None


@dataclass(frozen=True)
class Graph:
    """A selection of a workflow. `form`: its cuts and its cascade, which all requests have in common."""

    selection: str
    form: str
    accuracy: float
    nodes: tuple[Node, ...]


def utilisation(draft: Draft) -> float:
    """The highest planned utilisation of workers, by which the margin of times and rates is left."""
    longer, higher = draft.margin
    return draft.utilisation / ((1 + longer) * (1 + higher))


def program(draft: Draft) -> tuple[Fleet, list[Block], list[Pattern]]:
    """What the program over everything is of."""
    blocks: list[Block] = []
    patterns: list[Pattern] = []
    seconds: dict[str, dict[Model, float]] = {}
    memory: dict[str, dict[Model, float]] = {}
    links = _links(draft)
    for one in served(draft):
        workflow = one.workflow
        own = [*_graphs(one, draft)]
        least = -math.inf if workflow.accuracy is None else workflow.accuracy - 1e-9
        losses = tuple(LOSSES[loss] for loss in workflow.survive)
        block = Block(
            one.name,
            one.name,
            workflow.may_mix,
            workflow.mean_accuracy,
            workflow.penalty_usd_per_h,
            workflow.worth_usd_per_h if draft.rows or draft.is_several else None,
            losses,
        )
        blocks.append(block)
        taken = {block.name: [graph for graph in own if graph.accuracy >= least]}
        if workflow.audit is not None:
            plain = [graph for graph in own if "both" not in graph.selection.split()]  # of no cascade
            best = max(plain, key=lambda graph: graph.accuracy)
            audit = replace(block, name=f"{one.name}#audit", mixes=False, mean_accuracy=None, worth_usd_per_h=None)
            blocks.append(replace(audit, penalty_usd_per_h=None, losses=()))
            taken[audit.name] = [_audited(best, workflow.audit, workflow.sinks[0])]
        for name, graphs in taken.items():
            for graph in graphs:
                label = graph.form if block.mixes and name == block.name else graph.selection
                patterns += _patterns(replace(graph, selection=label), name, one, draft, links)
                _note(graph, one, draft, seconds, memory)
    return _fleet(draft, seconds, memory, links), blocks, patterns


def _pool_name(pool: str, row: Site | None) -> str:
    return pool if row is None else f"{row.name}/{pool}"


def _note(
    graph: Graph,
    one: Served,
    draft: Draft,
    seconds: dict[str, dict[Model, float]],
    memory: dict[str, dict[Model, float]],
) -> None:
    """Note what times and memory the models of a graph have in the pools that they can run in."""
    for node in graph.nodes:
        model = f"{one.name}/{node.name}", node.variant
        for pool in draft.pools:
            row = one.row if pool.tier == draft.tiers[0] else None
            if pool.name in node.seconds:
                name = _pool_name(pool.name, row)
                seconds.setdefault(name, {})[model] = node.seconds[pool.name]
                memory.setdefault(name, {})[model] = node.memory.get(pool.name, 0.0)


def _fleet(
    draft: Draft,
    seconds: Mapping[str, Mapping[Model, float]],
    memory: Mapping[str, Mapping[Model, float]],
    links: Mapping[Pair, tuple[Link, float | None]],
) -> Fleet:
    pools = []
    for pool in draft.pools:
        is_first = pool.tier == draft.tiers[0]
        sites = draft.sites.get(pool.tier, 1)
        for row in draft.rows if is_first and draft.rows else (None,):
            name = _pool_name(pool.name, row)
            stated = row.box_count if row is not None and pool.name == "box" else None
            pools.append(
                Workers(
                    name,
                    pool.tier if row is None else f"{pool.tier}/{row.name}",
                    pool.count if stated is None else stated,
                    draft.price(pool) * sites,
                    seconds.get(name, {}),
                    sites,
                    pool.memory_bytes,
                    memory.get(name, {}),
                    pool.is_exclusive,
                    uses={name: amount * sites for name, amount in draft.uses(pool).items()},
                )
            )
    tiers = frozenset(source.tier for workflow in draft.workflows for source in workflow.sources)
    first = draft.tiers[0]
    if draft.rows:
        tiers = (tiers - {first}) | {f"{first}/{row.name}" for row in draft.rows}
    higher = 1 + draft.margin[1]
    limits = {pair: None if limit is None else limit / higher for pair, (_, limit) in links.items()}
    budget, used = draft.budget_usd_per_h, dict(draft.limits)
    if draft.counts != "cost" and budget is not None:
        budget, used = None, {**used, "cost": budget}
    return Fleet(tuple(pools), limits, tiers, utilisation(draft), budget, used)


def _links(draft: Draft) -> dict[Pair, tuple[Link, float | None]]:
    """Pair of tiers -> link, and bytes per second of all sites or None."""
    found: dict[Pair, tuple[Link, float | None]] = {}
    for link in draft.links:
        if not draft.rows or link.upstream != draft.tiers[0]:
            limit = link.bandwidth_bit_per_s
            sites = draft.sites.get(link.upstream, 1)
            found[link.upstream, link.downstream] = link, None if limit is None else limit / 8.0 * sites
            continue
        for row in draft.rows:
            limit = link.bandwidth_bit_per_s if row.bandwidth_bit_per_s is None else row.bandwidth_bit_per_s
            pair = f"{link.upstream}/{row.name}", link.downstream
            found[pair] = link, None if limit is None else limit / 8.0
    return found


def _patterns(
    graph: Graph, block: str, one: Served, draft: Draft, links: Mapping[Pair, tuple[Link, float | None]]
) -> Iterator[Pattern]:
    """The graph with every assignment of its nodes to tiers over which its data can flow."""
    first = draft.tiers[0]
    tiers = [one.tier if tier == first else tier for tier in draft.tiers]
    sources = {source.name: one.tier if source.tier == first else source.tier for source in one.workflow.sources}
    choices = [
        [tier for tier in tiers if node.tiers is None or tier in (one.renamed(node.tiers, first) or ())]
        for node in graph.nodes
    ]
    for row in itertools.product(*choices):
        place = {**sources, **{node.name: tier for node, tier in zip(graph.nodes, row, strict=True)}}
        crossed: dict[Pair, float] = {}
        for node in graph.nodes:
            for feed in node.feeds:
                pair = place[feed.upstream], place[node.name]
                allowed = one.renamed(feed.stays_in, first)
                if (allowed is not None and not set(pair) <= set(allowed)) or (
                    pair[0] != pair[1] and pair not in links
                ):
                    break
                if pair[0] != pair[1]:
                    crossed[pair] = crossed.get(pair, 0.0) + feed.per_s * feed.size
            else:
                continue
            break
        else:
            gib = {pair: sent * 3600.0 / GIB for pair, sent in crossed.items()}
            usd = sum(amount * draft.price(links[pair][0]) for pair, amount in gib.items())
            uses = {
                name: sum(amount * draft.uses(links[pair][0])[name] for pair, amount in gib.items())
                for name in ("cost", "energy", "carbon")
            }
            rates = {(place[node.name], (f"{one.name}/{node.name}", node.variant)): node.per_s for node in graph.nodes}
            yield Pattern(block, graph.selection, graph.accuracy, usd, rates, crossed, uses)


def _audited(graph: Graph, share: float, answer: str) -> Graph:
    """The part of an audit: what an answer depends on, for a share of the requests, with operators of its own."""

    def name(text: str) -> str:
        return text if text in sources else f"audit.{text}"

    names = {node.name for node in graph.nodes}
    sources = {feed.upstream for node in graph.nodes for feed in node.feeds} - names
    needed = {answer}
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed |= {feed.upstream for feed in node.feeds}
    nodes = tuple(
        replace(
            node,
            name=name(node.name),
            per_s=share * node.per_s,
            feeds=tuple(replace(feed, upstream=name(feed.upstream), per_s=share * feed.per_s) for feed in node.feeds),
        )
        for node in graph.nodes
        if node.name in needed
    )
    return replace(graph, nodes=nodes, accuracy=0.0)


def _graphs(one: Served, draft: Draft) -> Iterator[Graph]:
    """One graph for each choice of every operator: a variant, a variant that is cut, or the cascade.

    A plan has at most one cascade.
    """
    workflow = one.workflow
    choices = [list(_choices(operator)) for operator in workflow.operators]
    for chosen in itertools.product(*choices):
        if sum(isinstance(choice, Cascade) for choice in chosen) <= 1:
            yield _graph(one, draft, dict(zip([own.name for own in workflow.operators], chosen, strict=True)))


Choice = tuple[Variant, bool] | Cascade  # a variant, and whether it is cut


def _choices(operator: Operator) -> Iterator[Choice]:
    for variant in operator.variants:
        yield variant, False
        if variant.cut is not None:
            yield variant, True
    if operator.cascade is not None:
        yield operator.cascade


class _Building:
    """The nodes of a graph so far. `per_s`: rates that are open, by the name of a source or node; `sizes`: messages."""

    def __init__(self, one: Served, draft: Draft) -> None:
        self.draft, self.one = draft, one
        self.nodes: list[Node] = []
        self.per_s = {source.name: (source.rate_per_s * one.sites,) for source in one.workflow.sources}
        self.sizes = {source.name: source.message_bytes for source in one.workflow.sources}
        self.limits = {source.name: source.stays_in for source in one.workflow.sources}

    def add(
        self,
        name: str,
        variant: Variant,
        operator: Operator,
        feeds: tuple[Feed, ...],
        rate: tuple[float, ...],
        label: str,
    ) -> None:
        seconds = {pool: _request_s(times) for pool, times in variant.times.items()}
        if operator.has_state:
            source = self.one.workflow.sources[0]
            each = source.rate_per_s / (source.streams or 1)
            seconds = {pool: _stream_s(own, each, utilisation(self.draft)) for pool, own in seconds.items()}
            seconds = {pool: own for pool, own in seconds.items() if own < math.inf}
        self.nodes.append(Node(name, label, rate[-1], feeds, seconds, variant.memory_bytes, operator.tiers))
        self.per_s[name], self.sizes[name] = rate, variant.message_bytes

    def feed(self, upstream: str, per_s: float, stays_in: tuple[str, ...] | None = None) -> Feed:
        limits = [limit for limit in (stays_in, self.limits.get(upstream)) if limit is not None]
        both = tuple(tier for tier in limits[0] if all(tier in limit for limit in limits)) if limits else None
        return Feed(upstream, per_s, self.sizes[upstream], both)


def _graph(one: Served, draft: Draft, chosen: Mapping[str, Choice]) -> Graph:
    building, accuracy = _Building(one, draft), 100.0
    labels: list[str] = []
    forms: list[str] = []
    for operator in one.workflow.operators:
        choice, edge = chosen[operator.name], operator.input
        above = building.per_s[edge.upstream]
        if edge.ratio is not None:
            above = (*above, above[-1] * _ratio(edge.ratio, chosen[edge.upstream]))
        rate = above[:-1] if edge.gather else above
        feed = building.feed(edge.upstream, above[-1], edge.stays_in)
        if isinstance(choice, Cascade):
            _add_cascade(building, operator, choice, feed, rate)
            accuracy *= choice.accuracy / 100.0
            labels.append("both")
            forms.append("both")
            continue
        variant, is_cut = choice
        accuracy *= variant.accuracy / 100.0
        labels.append(f"{variant.name}{' cut' * is_cut}")
        forms.append(labels[-1] if is_cut else "")
        if is_cut and variant.cut is not None:
            head = replace(variant, times=variant.cut.head, message_bytes=variant.cut.crossing_bytes)
            building.add(f"{operator.name}.head", head, operator, (feed,), rate, variant.name)
            between = building.feed(f"{operator.name}.head", rate[-1])
            tail = replace(variant, times=variant.cut.tail)
            building.add(operator.name, tail, operator, (between,), rate, f"{variant.name} tail")
        else:
            building.add(operator.name, variant, operator, (feed,), rate, variant.name)
    return Graph(" ".join(labels), " ".join(forms), accuracy, tuple(building.nodes))


def _ratio(ratio: float | dict[str, float], choice: Choice) -> float:
    if not isinstance(ratio, dict):
        return ratio
    assert not isinstance(choice, Cascade)  # no feature puts a cascade above a fan-out
    return ratio[choice[0].name]


def _add_cascade(
    building: _Building, operator: Operator, cascade: Cascade, feed: Feed, rate: tuple[float, ...]
) -> None:
    """The first variant, the step that passes on what it is not sure of, the second variant, and the answer."""
    by_name = {variant.name: variant for variant in operator.variants}
    first, then = by_name[cascade.first], by_name[cascade.then]
    steps = {pool: {1: seconds} for pool, seconds in cascade.step_s.items()}
    passed_bytes = _passed_on_bytes(building, operator)
    unsure = Variant("both", steps, passed_bytes, 100.0)
    passed = (*rate, rate[-1] * cascade.passed_on)
    building.add(f"{operator.name}.first", first, operator, (feed,), rate, first.name)
    scores = building.feed(f"{operator.name}.first", rate[-1])
    building.add(f"{operator.name}.unsure", unsure, operator, (scores, feed), rate, "both")
    on = building.feed(f"{operator.name}.unsure", passed[-1], feed.stays_in)
    building.add(f"{operator.name}.then", then, operator, (on,), passed, then.name)
    answers = building.feed(f"{operator.name}.first", rate[-1]), building.feed(f"{operator.name}.then", passed[-1])
    answer = Variant("both", steps, first.message_bytes, 100.0)
    building.add(operator.name, answer, operator, answers, rate, "both")


def _passed_on_bytes(building: _Building, operator: Operator) -> float:
    """As `documents.upstream_bytes` has it: the largest message that may go into the operator."""
    upstream = operator.input.upstream
    for own in building.one.workflow.operators:
        if own.name == upstream:
            return max(variant.message_bytes for variant in own.variants)
    return building.sizes[upstream]


def _request_s(times: Times) -> float:
    """At the smallest batch that no other one undercuts by more than 2 %."""
    least = min(seconds / size for size, seconds in times.items())
    size = min(size for size, seconds in times.items() if seconds / size * (1 - BATCH_SAVES) <= least)
    return times[size] / size


def _stream_s(request_s: float, each_per_s: float, utilisation: float) -> float:
    """Seconds by which a worker takes a whole number of streams; infinite if it takes none."""
    fitting = math.floor(utilisation / (request_s * each_per_s) + 1e-9)
    return utilisation / (fitting * each_per_s) if fitting else math.inf
