"""Checks of what no document can say of itself: names, tiers and flows.

Each check adds its problems to the tree that has to change. Broken entries count as declared, and nothing more is said
about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from jellybean.documents.flow import RATES_DIFFER, Flow, flow_of, rate_in_all
from jellybean.documents.schema.error_words import Checked
from jellybean.documents.schema.models import InfrastructureDocument, InputSpec, WorkflowDocument
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.units import close, nearest

Workflow = Checked[WorkflowDocument]
Infrastructure = Checked[InfrastructureDocument]
Names = tuple[str, ...]


def check_workflow(workflow: Workflow, infrastructure: Infrastructure) -> Flow:
    """Names, cycles, rates and held-out data of the workflow; returns how requests flow as far as that is known."""
    fleet = infrastructure.document
    sites = fleet.sites if fleet is not None else {}
    document, tree = workflow.document, workflow.tree
    if document is None:
        return Flow()
    _inputs(workflow, document)
    flow = flow_of(document, sites)
    for path, message, hint in flow.problems:
        tree.add(path, message, hint)
    _requests(workflow, document, sites)
    given = [key for key in ("labels", "metric") if getattr(document, key) is not None]
    if len(given) == 1 and not workflow.unknown("labels") and not workflow.unknown("metric"):
        other = "metric" if given == ["labels"] else "labels"
        example = "metric: exact_match" if other == "metric" else "labels: data/heldout.npz#labels"
        tree.add((given[0],), f"{given[0]} without {other}", f"write {example} too", key=True)
    if document.labels is not None:
        for name, source in document.sources.items():
            if source.inputs is None:
                hint = "write inputs: data/heldout.npz#name too"
                tree.add(("sources", name), "labels are given, but this source has no held-out inputs", hint, key=True)
    return flow


def _inputs(workflow: Workflow, document: WorkflowDocument) -> None:
    sources, operators = workflow.names("sources"), workflow.names("operators")
    for name in operators:
        if name in sources:
            workflow.tree.add(("operators", name), f"{name} is a source too", "give one another name", key=True)
    if workflow.unknown("sources") or workflow.unknown("operators"):
        return
    read = _edges(workflow, document, sources, operators)
    if any(path[0] == "operators" for path in workflow.broken):
        return
    for name in sources:
        if name not in read and not workflow.unknown("sources", name):
            hint = f"add inputs: [{name}] to an operator, or remove the source"
            workflow.tree.add(("sources", name), "no operator reads this source", hint, key=True)


def _edges(workflow: Workflow, document: WorkflowDocument, sources: Names, operators: Names) -> set[str]:
    """Where edges come from; returns what is read or was meant to be."""
    read: set[str] = set()
    for name, operator in document.operators.items():
        for index, edge in enumerate(operator.inputs):
            read.add(edge.upstream)
            if edge.upstream not in sources and edge.upstream not in operators:
                meant = nearest(edge.upstream, [*sources, *(item for item in operators if item != name)])
                read.add(meant or "")
                hint = f"did you mean {meant!r}?" if meant else _known(sources)
                message = f"there is no source or operator {edge.upstream!r}"
                workflow.tree.add(_edge_path(workflow, name, index, "from"), message, hint)
            elif edge.upstream in document.sources and edge.output is not None:
                message = f"{edge.upstream} is a source: it has no model outputs"
                workflow.tree.add(_edge_path(workflow, name, index, "output"), message, "leave output out")
            _ratios(workflow, document, edge, ("operators", name, "inputs", index, "ratio"))
    for name, raw in _as_written(workflow, "operators"):
        inputs = raw.get("inputs")
        for index, item in enumerate(inputs if isinstance(inputs, list) else ()):
            upstream = item.get("from") if isinstance(item, dict) else item
            if isinstance(upstream, str) and upstream not in sources and upstream not in operators:
                meant = nearest(upstream, [*sources, *(other for other in operators if other != name)])
                hint = f"did you mean {meant!r}?" if meant else _known(sources)
                path = _edge_path(workflow, name, index, "from")
                workflow.tree.add(path, f"there is no source or operator {upstream!r}", hint)
    return read


def _ratios(workflow: Workflow, document: WorkflowDocument, edge: InputSpec, path: DocPath) -> None:
    """A ratio by variant has one for each variant of the upstream, and no other."""
    if edge.upstream in document.sources and (edge.by_variant or edge.measured):
        message = f"{edge.upstream} is a source: its ratio depends on no variant"
        workflow.tree.add(path, message, "write one number: ratio: 4")
        return
    if not edge.by_variant or edge.upstream not in document.operators or workflow.unknown("operators", edge.upstream):
        return
    known = document.operators[edge.upstream].variants
    chosen = workflow.tree.place(("operators", edge.upstream, "variants")).line is None  # by an override, from those
    strangers = [variant for variant in edge.by_variant if variant not in known]
    for variant in () if chosen else strangers:
        hint = close(variant, known) or f"variants: {', '.join(known)}"
        workflow.tree.add((*path, variant), f"{edge.upstream} has no variant {variant!r}", hint, key=True)
    missing = [name for name in known if name not in edge.by_variant and nearest(name, strangers) is None]
    if missing:
        message = f"no ratio of variant {', '.join(missing)} of {edge.upstream}"
        workflow.tree.add(path, message, "write a ratio for each variant, one number, or measured")


def _edge_path(workflow: Workflow, operator: str, index: int, key: str) -> DocPath:
    """Down to the key when the edge is written out, else to the short form."""
    path: DocPath = ("operators", operator, "inputs", index)
    return (*path, key) if (*path, key) in workflow.tree.values else path


def _requests(workflow: Workflow, document: WorkflowDocument, sites: Mapping[str, int]) -> None:
    """A request is one message of each source that its operators join, so those agree on when requests come."""
    if not document.sources or any(RATES_DIFFER in problem.message for problem in workflow.tree.problems):
        return
    for first_name, *others in _parts(document):
        first = document.sources[first_name]
        first_per_s = rate_in_all(first, sites)
        for name in others:
            source = document.sources[name]
            per_s = rate_in_all(source, sites)
            if abs(per_s - first_per_s) > 1e-9 * first_per_s:
                counted = {source.tier, first.tier} & sites.keys()
                in_all = " in all sites" if counted else ""
                figures = f"{per_s:.6g}/s here, {first_name} {first_per_s:.6g}/s{in_all}"
                message = f"a request has one message of each source, but their rates differ: {figures}"
                workflow.tree.add(("sources", name, "rate"), message, "give them one rate")
            if source.arrivals is not first.arrivals:
                figures = f"{source.arrivals.value} here, {first_name} {first.arrivals.value}"
                message = f"a request has one message of each source, but their arrivals differ: {figures}"
                workflow.tree.add(("sources", name, "arrivals"), message, "give them the same arrivals")
            if source.deliver is not first.deliver:
                figures = f"{source.deliver.value} here, {first_name} {first.deliver.value}"
                message = f"a request has one message of each source, but their deliver differs: {figures}"
                workflow.tree.add(("sources", name, "deliver"), message, "give them the same")


def _parts(document: WorkflowDocument) -> list[list[str]]:
    """Sources by weakly connected part of the workflow."""
    parts: list[tuple[set[str], list[str]]] = [({name}, [name]) for name in document.sources]
    pending = {name: {name, *(edge.upstream for edge in spec.inputs)} for name, spec in document.operators.items()}
    for names in pending.values():
        met = [part for part in parts if part[0] & names]
        parts = [part for part in parts if not part[0] & names]
        parts.append((names.union(*(part[0] for part in met)), [source for part in met for source in part[1]]))
    return [sources for _, sources in parts if sources]


def check_infrastructure(infrastructure: Infrastructure) -> None:
    """Tiers of workers and links, and that data flows up."""
    document, tree = infrastructure.document, infrastructure.tree
    if document is None or infrastructure.unknown("tiers"):
        return
    tiers = document.tiers
    named = {name: pool.tier for name, pool in document.workers.items()}
    named |= {name: raw["tier"] for name, raw in _as_written(infrastructure, "workers") if _is_name(raw, "tier")}
    for name, tier in named.items():
        if tier not in tiers:
            _no_tier(infrastructure, ("workers", name, "tier"), tier, tiers)
    _links(infrastructure, document)
    _sites(infrastructure, document)
    if document.workers and not any(pool.count for pool in document.workers.values()):
        tree.add(("workers",), "all pools have count 0", "at least one worker is needed", key=True)


def _links(infrastructure: Infrastructure, document: InfrastructureDocument) -> None:
    tree, tiers = infrastructure.tree, document.tiers
    seen: dict[tuple[str, str], int] = {}
    for index, link in enumerate(document.links):
        ends = {"from": link.upstream_tier, "to": link.downstream_tier}
        for key, tier in ends.items():
            if tier not in tiers:
                _no_tier(infrastructure, ("links", index, key), tier, tiers)
        if any(tier not in tiers for tier in ends.values()):
            continue
        up, down = link.upstream_tier, link.downstream_tier
        if up == down:
            message = f"the link stays inside tier {up}, where traffic is free and immediate"
            tree.add(("links", index), message, "remove it, or name two tiers")
        elif tiers.index(up) > tiers.index(down):
            order = " -> ".join(tiers)
            tree.add(
                ("links", index), f"data would flow down, from {up} to {down}", f"tiers: {order}; exchange the ends"
            )
        elif (up, down) in seen:
            message = f"a second link from {up} to {down}, the first is links.{seen[up, down]}"
            tree.add(("links", index), message, "keep one of them")
        seen.setdefault((up, down), index)


def _sites(infrastructure: Infrastructure, document: InfrastructureDocument) -> None:
    """Sites are of tiers, and those of a lower tier are shared out evenly among those above: else they differ."""
    tiers, sites = document.tiers, document.sites
    for name in sites:
        if name not in tiers:
            _no_tier(infrastructure, ("sites", name), name, tiers)
    for low, high in pairwise(tiers):
        below, above = sites.get(low, 1), sites.get(high, 1)
        if below % above:
            path: DocPath = ("sites", high)
            message = f"{above:,} sites of {high} cannot share the {below:,} of {low} evenly: each gets as many"
            infrastructure.tree.add(path, message, _even(below, above, low, high))


def _even(below: int, above: int, low: str, high: str) -> str:
    """Numbers that fit, next to those given."""
    if below < above:
        return f"data flows up the tiers: {high} has as many sites as {low} at most; which tier stands first?"
    fewer = next(count for count in range(above, 0, -1) if below % count == 0)
    return (
        f"{high} may have {fewer:,} for {below:,} of {low}, or {low} {below - below % above:,} for {above:,} of {high}"
    )


def _as_written(checked: Checked[Any], section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Entries that were dropped for an error somewhere in them: what else they say can still be looked at."""
    entries = checked.tree.data.get(section) if isinstance(checked.tree.data, dict) else None
    for path in sorted(checked.broken, key=str):
        if isinstance(entries, dict) and path[0] == section and len(path) == 2:
            raw = entries.get(path[1])
            if isinstance(raw, dict):
                yield str(path[1]), raw


def _tiers_as_written(workflow: Workflow) -> Iterator[tuple[DocPath, str]]:
    for section, key in (("sources", "tier"), ("operators", "tiers")):
        for name, raw in _as_written(workflow, section):
            tiers = raw.get(key)
            if isinstance(tiers, str):
                yield (section, name, key), tiers
            for index, tier in enumerate(tiers if isinstance(tiers, list) else ()):
                if isinstance(tier, str):
                    yield (section, name, key, index), tier


def _is_name(raw: Mapping[str, Any], key: str) -> bool:
    return isinstance(raw.get(key), str)


def _no_tier(checked: Checked[InfrastructureDocument], path: DocPath, tier: str, tiers: tuple[str, ...]) -> None:
    checked.tree.add(path, f"there is no tier {tier!r}", close(tier, tiers) or f"tiers: {', '.join(tiers)}")


def check_tiers(workflow: Workflow, infrastructure: Infrastructure) -> None:
    """Tiers that the workflow names are declared, and a source's data may be where it is born."""
    document = workflow.document
    if document is None or infrastructure.document is None or infrastructure.unknown("tiers"):
        return
    tiers = infrastructure.document.tiers
    named: list[tuple[DocPath, str]] = []
    for name, source in document.sources.items():
        named.append((("sources", name, "tier"), source.tier))
        named += [(("sources", name, "stays_in", i), tier) for i, tier in enumerate(source.stays_in or ())]
        kept = source.stays_in
        if kept is not None and source.tier not in kept and all(tier in tiers for tier in (source.tier, *kept)):
            message = f"its data is born in {source.tier} but may be in {', '.join(kept)} only"
            workflow.tree.add(("sources", name, "stays_in"), message, f"add {source.tier}")
    for name, operator in document.operators.items():
        named += [(("operators", name, "tiers", i), tier) for i, tier in enumerate(operator.tiers or ())]
        for index, edge in enumerate(operator.inputs):
            path: DocPath = ("operators", name, "inputs", index, "stays_in")
            named += [((*path, i), tier) for i, tier in enumerate(edge.stays_in or ())]
    named += _tiers_as_written(workflow)
    for path, tier in named:
        if tier not in tiers:
            hint = close(tier, tiers) or f"tiers of the infrastructure: {', '.join(tiers)}"
            workflow.tree.add(path, f"there is no tier {tier!r}", hint)


def check_reach(
    workflow: Workflow, infrastructure: Infrastructure, flow: Flow, runs_on: Mapping[str, Iterable[str]]
) -> None:
    """Some worker that can run an operator stands where all its data can come. `runs_on`: operator -> pools."""
    document, fleet = workflow.document, infrastructure.document
    if document is None or fleet is None or infrastructure.broken or infrastructure.tree.problems:
        return
    reach = {tier: _reachable(tier, fleet) for tier in fleet.tiers}
    feeding: dict[str, set[str]] = {name: {name} for name in document.sources}
    for name in flow.order:
        if name not in flow.edges:
            continue
        feeding[name] = set().union(*(feeding[edge.upstream] for edge in flow.edges[name]))
        sources = [document.sources[source] for source in feeding[name]]
        if name not in runs_on or any(source.tier not in reach for source in sources):
            continue
        tiers = set(fleet.tiers).intersection(*(reach[source.tier] for source in sources))
        pools = [pool for pool in runs_on[name] if fleet.workers[pool].count > 0]
        if pools and not any(fleet.workers[pool].tier in tiers for pool in pools):
            where = ", ".join(f"{pool} in {fleet.workers[pool].tier}" for pool in pools)
            origin = ", ".join(f"{source} in {document.sources[source].tier}" for source in sorted(feeding[name]))
            message = f"its data cannot reach a worker that can run it: data from {origin}; workers {where}"
            hint = "data flows up the tiers over declared links: add a link, or workers in a later tier"
            workflow.tree.add(("operators", name), message, hint, key=True)


def _reachable(tier: str, fleet: InfrastructureDocument) -> set[str]:
    found = {tier}
    while new := {link.downstream_tier for link in fleet.links if link.upstream_tier in found} - found:
        found |= new
    return found


def _known(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"sources: {listed}" if listed else ""
