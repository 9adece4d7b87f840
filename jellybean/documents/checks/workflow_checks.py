"""Check the workflow and the infrastructure: names, tiers, request flow, and reachability of workers.

Each check adds its problems to the tree of the document that the user has to change. Entries that are invalid by
themselves count as declared and are not checked further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jellybean.documents.checks.checked import CheckedInfrastructure, CheckedWorkflow, as_written
from jellybean.documents.flow import RATES_DIFFER, SOURCES_DIFFER, Flow, follow_requests, total_rate
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.reader import DocPath
from jellybean.documents.schema.validation import CheckedDocument
from jellybean.documents.schema.workflow import InputSpec, WorkflowDocument
from jellybean.quantities import did_you_mean, nearest_name
from jellybean_solver import missing_link_text, missing_links, rate_text

Names = tuple[str, ...]


def check_workflow(workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure) -> Flow:
    """Check names, cycles, rates and held-out data of the workflow. Returns the flow of its part without errors."""
    fleet = infrastructure.document
    sites = fleet.sites if fleet is not None else {}
    document, tree = workflow.document, workflow.tree
    if document is None:
        return Flow()
    _check_names(workflow, document)
    flow = follow_requests(document, sites)
    for path, message, hint in flow.problems:
        tree.add(path, message, hint)
    _check_joined_sources(workflow, document, sites)
    _check_labelled_answer(workflow, document, flow)
    given = [key for key in ("labels", "metric") if getattr(document, key) is not None]
    if len(given) == 1 and not workflow.is_broken("labels") and not workflow.is_broken("metric"):
        other = "metric" if given == ["labels"] else "labels"
        example = "metric: exact_match" if other == "metric" else "labels: data/heldout.npz#labels"
        tree.add((given[0],), f"{given[0]} without {other}", f"write {example} too", key=True)
    if document.labels is not None:
        for name, source in document.sources.items():
            if source.inputs is None:
                hint = "write inputs: data/heldout.npz#name too"
                tree.add(("sources", name), "labels are given, but this source has no held-out inputs", hint, key=True)
    return flow


def _check_labelled_answer(workflow: CheckedWorkflow, document: WorkflowDocument, flow: Flow) -> None:
    """Check that it is certain which answer the labels are for. Workflows with errors in their edges are skipped."""
    tree, chosen, answers = workflow.tree, document.labels_of, document.answers
    if chosen is not None and document.labels is None and not workflow.is_broken("labels"):
        tree.add(("labels_of",), "labels_of without labels", "write labels: data/heldout.npz#labels too", key=True)
    edges_broken = workflow.is_broken("operators") or any(path[0] == "operators" for path in workflow.broken)
    if edges_broken or workflow.is_broken("labels_of") or any(name not in flow.edges for name in document.operators):
        return
    choices = " or ".join(f"labels_of: {name}" for name in answers)
    if chosen is None:
        if document.labels is not None and len(answers) > 1:
            message = f"{len(answers)} operators answer ({', '.join(answers)}), and labels are for one of them"
            tree.add(("labels",), message, f"write {choices}", key=True)
    elif chosen not in document.operators:
        hint = did_you_mean(chosen, answers) or f"write {choices}"
        tree.add(("labels_of",), f"there is no operator {chosen!r}", hint)
    elif chosen not in answers:
        readers = [name for name, spec in document.operators.items() if chosen in {e.upstream for e in spec.inputs}]
        message = f"{chosen} does not answer: it feeds {', '.join(readers)}"
        tree.add(("labels_of",), message, f"write {choices}")


def _check_names(workflow: CheckedWorkflow, document: WorkflowDocument) -> None:
    sources, operators = workflow.names("sources"), workflow.names("operators")
    for name in operators:
        if name in sources:
            workflow.tree.add(("operators", name), f"{name} is also a source", "rename one of them", key=True)
    if workflow.is_broken("sources") or workflow.is_broken("operators"):
        return
    read = _check_edges(workflow, document, sources, operators)
    if any(path[0] == "operators" for path in workflow.broken):
        return
    for name in sources:
        if name not in read and not workflow.is_broken("sources", name):
            hint = f"add inputs: [{name}] to an operator, or remove the source"
            workflow.tree.add(("sources", name), "no operator reads this source", hint, key=True)


def _check_edges(workflow: CheckedWorkflow, document: WorkflowDocument, sources: Names, operators: Names) -> set[str]:
    """Check that the upstreams of all edges exist.

    Returns all upstream names, and for each unknown one also the name that was probably meant; all sources if none is.
    """
    read: set[str] = set()
    for name, operator in document.operators.items():
        for index, edge in enumerate(operator.inputs):
            read.add(edge.upstream)
            if edge.upstream not in sources and edge.upstream not in operators:
                meant = nearest_name(edge.upstream, [*sources, *(item for item in operators if item != name)])
                read.update([meant] if meant else sources)
                hint = f"did you mean {meant!r}?" if meant else _known(sources)
                message = f"there is no source or operator {edge.upstream!r}"
                workflow.tree.add(_edge_path(workflow, name, index, "from"), message, hint)
            elif edge.upstream in document.sources and edge.output is not None:
                message = f"{edge.upstream} is a source: it has no model outputs"
                workflow.tree.add(_edge_path(workflow, name, index, "output"), message, "remove output")
            _check_ratios(workflow, document, edge, ("operators", name, "inputs", index, "ratio"))
    for name, raw in as_written(workflow, "operators"):
        inputs = raw.get("inputs")
        for index, item in enumerate(inputs if isinstance(inputs, list) else ()):
            upstream = item.get("from") if isinstance(item, dict) else item
            if isinstance(upstream, str) and upstream not in sources and upstream not in operators:
                meant = nearest_name(upstream, [*sources, *(other for other in operators if other != name)])
                hint = f"did you mean {meant!r}?" if meant else _known(sources)
                path = _edge_path(workflow, name, index, "from")
                workflow.tree.add(path, f"there is no source or operator {upstream!r}", hint)
    return read


def _check_ratios(workflow: CheckedWorkflow, document: WorkflowDocument, edge: InputSpec, path: DocPath) -> None:
    """Check that a ratio given by variant names exactly the variants of the upstream operator."""
    if edge.upstream in document.sources and (edge.by_variant or edge.measured):
        message = f"{edge.upstream} is a source: its ratio cannot depend on a variant"
        workflow.tree.add(path, message, "write one number: ratio: 4")
        return
    if not edge.by_variant or edge.upstream not in document.operators or workflow.is_broken("operators", edge.upstream):
        return
    known = document.operators[edge.upstream].variants
    overridden = workflow.tree.position(("operators", edge.upstream, "variants")).line is None
    unknown = [variant for variant in edge.by_variant if variant not in known]
    for variant in () if overridden else unknown:
        hint = did_you_mean(variant, known) or f"variants: {', '.join(known)}"
        workflow.tree.add((*path, variant), f"{edge.upstream} has no variant {variant!r}", hint, key=True)
    missing = [name for name in known if name not in edge.by_variant and nearest_name(name, unknown) is None]
    if missing:
        message = f"no ratio for variant {', '.join(missing)} of {edge.upstream}"
        workflow.tree.add(path, message, "write a ratio for each variant, one number, or measured")


def _edge_path(workflow: CheckedWorkflow, operator: str, index: int, key: str) -> DocPath:
    """Path of a key of an edge, or of the edge itself if it is written in short form."""
    path: DocPath = ("operators", operator, "inputs", index)
    return (*path, key) if (*path, key) in workflow.tree.values else path


def _check_joined_sources(workflow: CheckedWorkflow, document: WorkflowDocument, sites: Mapping[str, int]) -> None:
    """Check that joined sources have equal rates, arrivals and delivery: a request has one message from each source."""
    differ = RATES_DIFFER, SOURCES_DIFFER
    if not document.sources or any(text in problem.message for problem in workflow.tree.problems for text in differ):
        return
    for first_name, *others in connected_sources(document):
        first = document.sources[first_name]
        first_per_s = total_rate(first, sites)
        for name in others:
            source = document.sources[name]
            per_s = total_rate(source, sites)
            if abs(per_s - first_per_s) > 1e-9 * first_per_s:
                counted = {source.tier, first.tier} & sites.keys()
                in_all = " in all sites" if counted else ""
                figures = f"{rate_text(per_s)} here, {first_name} {rate_text(first_per_s)}{in_all}"
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


def connected_sources(document: WorkflowDocument) -> list[list[str]]:
    """The sources of each weakly connected component of the workflow."""
    parts: list[tuple[set[str], list[str]]] = [({name}, [name]) for name in document.sources]
    pending = {name: {name, *(edge.upstream for edge in spec.inputs)} for name, spec in document.operators.items()}
    for names in pending.values():
        touched = [part for part in parts if part[0] & names]
        parts = [part for part in parts if not part[0] & names]
        parts.append((names.union(*(part[0] for part in touched)), [source for part in touched for source in part[1]]))
    return [sources for _, sources in parts if sources]


def check_infrastructure(infrastructure: CheckedInfrastructure) -> None:
    """Check tiers of workers, links and sites, and the direction of links."""
    document, tree = infrastructure.document, infrastructure.tree
    if document is None or infrastructure.is_broken("tiers"):
        return
    tiers = document.tiers
    named = {name: pool.tier for name, pool in document.workers.items()}
    named |= {name: raw["tier"] for name, raw in as_written(infrastructure, "workers") if _is_name(raw, "tier")}
    for name, tier in named.items():
        if tier not in tiers:
            _no_tier(infrastructure, ("workers", name, "tier"), tier, tiers)
    _check_links(infrastructure, tiers)
    _check_sites(infrastructure, document)
    if document.workers and not any(pool.count for pool in document.workers.values()):
        tree.add(("workers",), "all pools have count 0", "give at least one pool a worker", key=True)


def _check_links(infrastructure: CheckedInfrastructure, tiers: Names) -> None:
    """Check the ends of all links as written: a link with an invalid price may go the wrong way, too."""
    tree = infrastructure.tree
    seen: dict[tuple[str, str], int] = {}
    written = tree.data.get("links") if isinstance(tree.data, dict) else None
    for index, link in enumerate(written if isinstance(written, list) else ()):
        if not isinstance(link, dict):
            continue
        ends = {key: link[key] for key in ("from", "to") if _is_name(link, key)}
        for key, tier in ends.items():
            if tier not in tiers:
                _no_tier(infrastructure, ("links", index, key), tier, tiers)
        if len(ends) < 2 or any(tier not in tiers for tier in ends.values()):
            continue
        up, down = ends["from"], ends["to"]
        if up == down:
            message = f"the link is inside tier {up}, where transfers are free and immediate"
            tree.add(("links", index), message, "remove it, or name two tiers")
        elif tiers.index(up) > tiers.index(down):
            order = " -> ".join(tiers)
            tree.add(("links", index), f"the link goes from {up} back to {down}", f"tiers: {order}; swap from and to")
        elif (up, down) in seen:
            message = f"a second link from {up} to {down}; the first is links.{seen[up, down]}"
            tree.add(("links", index), message, "keep one of them")
        seen.setdefault((up, down), index)


def _check_sites(infrastructure: CheckedInfrastructure, document: InfrastructureDocument) -> None:
    """Check that each tier's site count divides that of the previous tier, because sites of a tier are identical."""
    tiers, sites = document.tiers, document.sites
    for name in document.written_sites:
        if name not in tiers:
            _no_tier(infrastructure, ("sites", name), name, tiers)
    for low, high in pairwise(tiers):
        below, above = sites.get(low, 1), sites.get(high, 1)
        if below % above:
            path: DocPath = ("sites", high)
            message = f"the {below:,} sites of {low} cannot be divided evenly among {above:,} sites of {high}"
            infrastructure.tree.add(path, message, _divisible_counts(below, above, low, high))


def _divisible_counts(below: int, above: int, low: str, high: str) -> str:
    """Hint that suggests site counts for the tiers `low` and `high` of which one divides the other."""
    if below < above:
        return f"{high} can have at most as many sites as {low}; check the order of tiers"
    fewer = next(count for count in range(above, 0, -1) if below % count == 0)
    return f"write {fewer:,} sites of {high}, or {below - below % above:,} sites of {low}"


def _tiers_as_written(workflow: CheckedWorkflow) -> Iterator[tuple[DocPath, str]]:
    for section, key in (("sources", "tier"), ("operators", "tiers")):
        for name, raw in as_written(workflow, section):
            tiers = raw.get(key)
            if isinstance(tiers, str):
                yield (section, name, key), tiers
            for index, tier in enumerate(tiers if isinstance(tiers, list) else ()):
                if isinstance(tier, str):
                    yield (section, name, key, index), tier


def _is_name(raw: Mapping[str, Any], key: str) -> bool:
    return isinstance(raw.get(key), str)


def _no_tier(
    checked: CheckedDocument[InfrastructureDocument], path: DocPath, tier: str, tiers: tuple[str, ...]
) -> None:
    checked.tree.add(path, f"there is no tier {tier!r}", did_you_mean(tier, tiers) or f"tiers: {', '.join(tiers)}")


def check_tiers(workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure) -> None:
    """Check that the workflow's tiers are declared and that each source's data may stay in the source's tier."""
    document = workflow.document
    if document is None or infrastructure.document is None or infrastructure.is_broken("tiers"):
        return
    tiers = infrastructure.document.tiers
    named: list[tuple[DocPath, str]] = []
    for name, source in document.sources.items():
        named.append((("sources", name, "tier"), source.tier))
        named += [(("sources", name, "stays_in", i), tier) for i, tier in enumerate(source.stays_in or ())]
        kept = source.stays_in
        if kept is not None and source.tier not in kept and all(tier in tiers for tier in (source.tier, *kept)):
            message = f"its data is produced in {source.tier}, but stays_in allows only {', '.join(kept)}"
            workflow.tree.add(("sources", name, "stays_in"), message, f"add {source.tier}")
    for name, operator in document.operators.items():
        named += [(("operators", name, "tiers", i), tier) for i, tier in enumerate(operator.tiers or ())]
        for index, edge in enumerate(operator.inputs):
            path: DocPath = ("operators", name, "inputs", index, "stays_in")
            named += [((*path, i), tier) for i, tier in enumerate(edge.stays_in or ())]
    named += _tiers_as_written(workflow)
    for path, tier in named:
        if tier not in tiers:
            hint = did_you_mean(tier, tiers) or f"tiers of the infrastructure: {', '.join(tiers)}"
            workflow.tree.add(path, f"there is no tier {tier!r}", hint)


def check_resources(workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure) -> None:
    """Check that all workers state what an objective, a limit or a price of energy or carbon counts."""
    document, fleet = workflow.document, infrastructure.document
    if document is None or fleet is None or infrastructure.broken or infrastructure.tree.problems:
        return
    counted = [name for name, one in fleet.resources.items() if document.objective is name or one.usd or one.most]
    for name, pool in fleet.workers.items():
        known = fleet.uses(pool.worker_power_w, pool.carbon_g_per_wh)
        if missing := [resource for resource in counted if resource not in known]:
            message = f"plans count {' and '.join(missing)}, which these workers do not state"
            infrastructure.tree.add(("workers", name), message, "write {power: 120 W, carbon: 350 g/kWh}, or 0 W")


def check_reachable_workers(
    workflow: CheckedWorkflow, infrastructure: CheckedInfrastructure, flow: Flow, runs_on: Mapping[str, Iterable[str]]
) -> None:
    """Check that each operator's data can reach a worker that can run it. `runs_on`: operator -> pools."""
    document, fleet = workflow.document, infrastructure.document
    if document is None or fleet is None or infrastructure.broken or infrastructure.tree.problems:
        return
    links = {(link.upstream_tier, link.downstream_tier) for link in fleet.links}
    able = {
        name: {fleet.workers[pool].tier for pool in pools if fleet.workers[pool].count}
        for name, pools in runs_on.items()
    }
    placed = {name: {source.tier} & {*fleet.tiers} for name, source in document.sources.items()}
    for name in flow.order:
        origins = [edge.upstream for edge in flow.edges.get(name, ())]
        if not origins or not all(placed.get(upstream) for upstream in origins):
            continue
        own = able.get(name) or {*fleet.tiers}
        placed[name] = {
            tier for tier in own if all(_comes_to(tier, placed[upstream], links, fleet.tiers) for upstream in origins)
        }
        if not placed[name] and not able.get(name):
            placed[name] = {*fleet.tiers}  # it is another problem that no worker can run it
        elif not placed[name]:
            inputs = {upstream: placed[upstream] for upstream in origins}
            pools = [pool for pool in runs_on[name] if fleet.workers[pool].count]
            _add_unreachable(workflow, fleet, name, inputs, pools)


def _comes_to(tier: str, from_tiers: Iterable[str], links: Collection[tuple[str, str]], tiers: Sequence[str]) -> bool:
    """True if data in one of some tiers can be sent to `tier`: over one link, as data is not forwarded."""
    return any(up == tier or ((up, tier) in links and tiers.index(up) < tiers.index(tier)) for up in from_tiers)


def _add_unreachable(
    workflow: CheckedWorkflow,
    fleet: InfrastructureDocument,
    name: str,
    inputs: Mapping[str, Collection[str]],
    pools: Collection[str],
) -> None:
    """Add the problem of an operator whose inputs have no way to a tier with workers for it."""
    links = {(link.upstream_tier, link.downstream_tier) for link in fleet.links}
    ordered = sorted({fleet.workers[pool].tier for pool in pools}, key=fleet.tiers.index)
    where = ", ".join(f"{pool} in {fleet.workers[pool].tier}" for pool in pools)
    origin = ", ".join(
        f"{upstream} in {' or '.join(sorted(at, key=fleet.tiers.index))}" for upstream, at in inputs.items()
    )
    message = f"its data cannot reach a worker that can run it: data from {origin}; workers {where}"
    missing = missing_links(fleet.tiers, links, inputs.values(), ordered)
    hint = "; ".join(missing_link_text(links, ends) for ends in missing)
    hint = hint or "data goes up the tiers only: add workers in a later tier"
    workflow.tree.add(("operators", name), message, hint, key=True)


def _known(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"sources: {listed}" if listed else ""
