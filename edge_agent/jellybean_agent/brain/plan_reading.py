"""Reads the view of a plan from its document's JSON, so that a device needs no solver.

`plan_format` checks kind, version and content hash. Each site of a tier becomes a tier of its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from jellybean_agent.brain.audit_view import read_audit
from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.brain.plan_figures import read_figures
from jellybean_agent.brain.plan_view import Fallback, LinkView, OperatorView, PlanView, PythonView, WorkerView
from jellybean_agent.brain.route_table import Group
from jellybean_agent.brain.sites import SiteRoutes, Sites
from jellybean_agent.brain.wiring import EdgeKind, OperatorWiring
from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.system.device import CPU, Device
from jellybean_agent.tensors.ports import PortNames
from jellybean_protos import plan_format

MAX_PLAN_BYTES = 64 * 2**20
_MAX_REASON = 500  # characters
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # in a name: control characters, half characters
_LITTLE = 1e-6  # shares that differ from 1 by less are rounded
_KINDS = ("each", "fan_out", "gather")


def read_plan(path: Path) -> PlanView:
    """The view of a plan file. PlanViewError if it cannot be read, or kind, version or hash are wrong."""
    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise PlanViewError(f"{path}: above {MAX_PLAN_BYTES} bytes; a plan is smaller")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanViewError(f"{path}: {describe_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise PlanViewError(f"{path}: not JSON: {error}") from error
    return plan_view(document)


def plan_view(document: Any) -> PlanView:
    """The view of a plan document. PlanViewError unless kind, version and hash are right."""
    try:
        plan_format.body_of(document, "this agent")
    except plan_format.PlanFormatError as error:
        raise PlanViewError(str(error)) from error
    return view_of_part(document)


def view_of_part(document: Mapping[str, Any]) -> PlanView:
    """As `plan_view`, of a part of a plan document that has the hash of the whole."""
    try:
        view = _parse(document)
        _check_routes(view)
        return _in_sites(view, document.get("sites", {}))
    except plan_format.UNREADABLE as error:
        raise no_plan(error) from error


def _parse(document: Mapping[str, Any]) -> PlanView:
    sources = {_text(item["name"]): _text(item["tier"]) for item in document["sources"]}
    routes = tuple({_text(op): _text(worker) for op, worker in item["workers"].items()} for item in document["routes"])
    items = {_text(item["name"]): item for item in document["operators"]}
    operators, others = _operators(document["operators"], frozenset(sources))
    workers = {_text(item["name"]): _worker(item, operators, items, routes) for item in document["workers"]}
    outputs = {
        source: tuple((op.name, kind) for op in operators.values() for up, kind in op.wiring.inputs if up == source)
        for source in sources
    }
    links = tuple(
        LinkView(
            _text(item["upstream_tier"]),
            _text(item["downstream_tier"]),
            item["bandwidth_bytes_per_s"],
            float(item["latency_s"]),
            float(item.get("price_usd_per_gib", 0.0)),
        )
        for item in document["links"]
    )
    weights = tuple(float(item["weight"]) for item in document["routes"])
    several = tuple(_text(item["name"]) for item in document.get("workflows", ()))
    name, hash_ = _text(document["name"]), document["hash"]
    audit = read_audit(document, outputs)
    apart = audit.source_outputs if audit is not None else {}  # of several workflows each view has its own audit
    periodic = all(item.get("arrivals") == "periodic" for item in document["sources"])
    eventually = any(item.get("deliver") == "eventually" for item in document["sources"])
    return PlanView(
        name=name,
        hash=hash_,
        tiers_at=(sources,),
        source_outputs={source: readers for source, readers in outputs.items() if source not in apart},
        operators=operators,
        workers=workers,
        routes=routes,
        weights=weights,
        links=links,
        figures=read_figures(document),
        periodic=periodic,
        eventually=eventually,
        others=others,
        groups=_groups(document.get("spread", {}), operators, workers),
        fallbacks=_fallbacks(document.get("fallbacks", ()), [_workflow_of(route, several) for route in routes]),
        workflows=several,
        audit=audit,
    )


def _workflow_of(route: Mapping[str, str], several: Sequence[str]) -> str:
    """The workflow of a route's requests, of several; empty if there is only one."""
    return next(iter(route), "").partition(plan_format.WORKFLOW_SEPARATOR)[0] if several else ""


def no_plan(error: Exception) -> PlanViewError:
    """What reading a part of a plan raised, as an error in one line: names in a plan may be any text."""
    text = f"not a plan: {type(error).__name__} {str(error)[:_MAX_REASON]}"
    return PlanViewError("".join(char if char.isprintable() else "?" for char in text))


def _text(value: Any) -> str:
    """The value, if it is text without control characters. TypeError otherwise.

    Names are keys, and parts of paths, messages and logs.
    """
    if not isinstance(value, str) or _UNFIT.search(value):
        raise TypeError(f"{str(value)[:60]!r} is no name")
    return value


def _fallbacks(items: Sequence[Mapping[str, Any]], workflow_of: Sequence[str]) -> tuple[Fallback, ...]:
    """The fallbacks, those that close the fewest routes first. ValueError unless weights are shares of open routes.

    `workflow_of`: the workflow of each route, of several, which may be served in part; else "".
    """
    fallbacks: list[Fallback] = []
    for item in items:
        closes, weights = frozenset(map(int, item["closes"])), tuple(map(float, item["weights"]))
        if weights and (not _are_shares(weights, workflow_of) or any(weights[number] for number in closes)):
            raise ValueError("a fallback does not share the requests out over the routes that are left")
        fallbacks.append(Fallback(_text(item["lost"]), closes, weights))
    return tuple(sorted(fallbacks, key=lambda fallback: len(fallback.closes)))


def _are_shares(weights: Sequence[float], workflow_of: Sequence[str]) -> bool:
    """True if there is a weight for each route, and those of a workflow are shares of its requests."""
    if len(weights) != len(workflow_of) or min(weights) < 0:
        return False
    shares = dict.fromkeys(workflow_of, 0.0)
    for workflow, weight in zip(workflow_of, weights, strict=True):
        shares[workflow] += weight
    return all((0.0 if workflow else 1.0) - _LITTLE <= share <= 1.0 + _LITTLE for workflow, share in shares.items())


def _groups(
    spread: Mapping[str, Any], operators: Mapping[str, OperatorView], workers: Mapping[str, WorkerView]
) -> dict[tuple[str, str], Group]:
    """(operator, worker) -> the group round which children go. ValueError for a group that cannot be one."""
    found: dict[tuple[str, str], Group] = {}
    for operator, groups in spread.items():
        for group in groups:
            names = tuple(str(name) for name in group)
            own = operators[operator].depth > 0 and all(operator in workers[name].operators for name in names)
            if not own or len({workers[name].tier for name in names}) != 1 or len(set(names)) != len(names):
                raise ValueError(f"children of {operator} spread over {', '.join(names)}")
            found |= dict.fromkeys(((str(operator), name) for name in names), names)
    return found


def _in_sites(view: PlanView, counts: Mapping[str, int]) -> PlanView:
    """The view with each site of a tier as a tier of its own."""
    sites = Sites({str(tier): int(count) for tier, count in counts.items()})
    if sites.most == 1:
        return view
    if view.groups:
        raise PlanViewError("a plan of several sites spreads no children")
    tier_of = {name: worker.tier for name, worker in view.workers.items()}
    workers = {
        name: replace(worker, name=name, tier=sites.tier_name(worker.tier, site))
        for worker in view.workers.values()
        for site in sites.of(worker.tier)
        for name in [sites.worker_name(worker.tier, worker.name, site)]
    }
    links = {
        ends: replace(link, upstream_tier=ends[0], downstream_tier=ends[1])
        for link in view.links
        for place in range(sites.most)
        for ends in [(sites.name_at(link.upstream_tier, place), sites.name_at(link.downstream_tier, place))]
    }
    sources = view.tiers_at[0].items()
    tiers_at = tuple({name: sites.name_at(tier, place) for name, tier in sources} for place in range(sites.most))
    routes = SiteRoutes(view.routes, tier_of, sites)
    return replace(view, tiers_at=tiers_at, workers=workers, routes=routes, links=tuple(links.values()))


def _worker(
    item: Mapping[str, Any],
    operators: Mapping[str, OperatorView],
    items: Mapping[str, Mapping[str, Any]],
    routes: tuple[Mapping[str, str], ...],
) -> WorkerView:
    """A worker. `items`: operator -> its part of the document."""
    pool, own = item["pool"], tuple(op for op in operators if any(route.get(op) == item["name"] for route in routes))
    chosen = {str(op): str(variant) for op, variant in item.get("variants", {}).items()}
    here = {op: _variant_item(items[op], chosen.get(op)) for op in own}
    sizes = {op: int(here[op]["batch"][pool]) for op in own}
    for op, size in sizes.items():
        wiring = operators[op].wiring
        names = _port_names((here[op].get("model") or {}).get("ports") or {})
        fans_out = "fan_out" in (kind for _, kind in wiring.outputs)
        alone = not names.can_batch(fans_out=fans_out, gathers="gather" in (kind for _, kind in wiring.inputs))
        if size < 1 or (size > 1 and alone):
            raise ValueError(f"batches of {size} of {op}" + (", which gathers or fans out" if alone else ""))
    delays = {op: float(here[op].get("batch_delay_s", 0.0)) for op in own}
    waits = {op: delays[op] for op in own if delays[op] and sizes[op] > 1}
    if not all(0 <= wait_s < math.inf for wait_s in waits.values()):
        raise ValueError(f"delays of {waits}")
    service = {op: here[op]["service"][pool] for op in own}
    emulated = float(item.get("speed", 1.0)) != 1.0
    times_s = {op: _device_s(op, service[op]) for op in own} if emulated else None
    loads = {op: _load(float(item["rates_per_s"].get(op, 0.0)), service[op], sizes[op]) for op in own}
    price = float(item["price_usd_per_h"])
    taken = {op: float(here[op].get("device_memory_bytes", {}).get(pool, 0.0)) for op in own}
    device, memory = _device(item), _device_memory(item, taken)
    return WorkerView(
        item["name"], _text(item["tier"]), own, sizes, times_s, loads, price, waits, device, memory, variants=chosen
    )


def _variant_item(item: Mapping[str, Any], variant: str | None) -> Mapping[str, Any]:
    """The part of the document on one variant of an operator: the operator's own part, or one of `others` in it."""
    if variant is None:
        return item
    for one in (item, *item.get("others", ())):
        if one["variant"] == variant:
            return cast(Mapping[str, Any], one)
    raise ValueError(f"variant {variant} of {item['name']}")


def _device_memory(item: Mapping[str, Any], taken: Mapping[str, float]) -> dict[str, float]:
    """Operator -> its share of the memory of the worker's device, in proportion to what its model takes (`taken`).

    All shares together are the device's memory, and each is at least what the model took when it was measured.
    """
    limit, total = item.get("device_memory_bytes"), sum(taken.values())
    if limit is None or not total:
        return {}
    if not all(0 <= size < math.inf for size in (float(limit), *taken.values())):
        raise ValueError(f"device memory of {limit}, of which models take {taken}")
    return {name: float(limit) * size / total for name, size in taken.items() if size}


def _device(item: Mapping[str, Any]) -> Device:
    options = tuple((str(name), str(value)) for name, value in item.get("device_options", ()))
    return Device(str(item.get("device", CPU.name)), options)


def _load(rate_per_s: float, times: Mapping[str, Mapping[str, float]], batch: int) -> float:
    """Fraction of a worker's time that is busy at this rate and batch size. `times`: profile by batch size as text."""
    size = batch if str(batch) in times else 1
    return rate_per_s * float(times[str(size)]["mean_s"]) / size


def _device_s(operator: str, times: Mapping[str, Mapping[str, float]]) -> dict[int, float]:
    found = {int(size): float(time["mean_s"]) for size, time in times.items()}
    if 1 not in found or not all(size >= 1 and 0 <= time_s < math.inf for size, time_s in found.items()):
        raise ValueError(f"times of {operator}: {found}")
    return found


def _operators(
    items: list[Mapping[str, Any]], sources: frozenset[str]
) -> tuple[dict[str, OperatorView], dict[str, tuple[OperatorView, ...]]]:
    """The operators, which the document lists in topological order, and the further variants of those that have any."""
    readers: dict[str, list[Mapping[str, Any]]] = {item["name"]: [] for item in items}  # the edges out of each
    for item in items:
        for edge in item["inputs"]:
            upstream = edge["upstream"]
            if edge["kind"] not in _KINDS or (upstream not in readers and upstream not in sources):
                raise ValueError(f"edge {upstream} -> {item['name']}")
            if upstream in readers:
                readers[upstream].append({**edge, "downstream": item["name"]})
    depths = dict.fromkeys(sources, 0)
    found: dict[str, OperatorView] = {}
    others: dict[str, tuple[OperatorView, ...]] = {}
    for item in items:
        name = item["name"]
        inputs = tuple((edge["upstream"], cast(EdgeKind, edge["kind"])) for edge in item["inputs"])
        levels = {depths[up] + {"each": 0, "fan_out": 1, "gather": -1}[kind] for up, kind in inputs}
        if len(levels) != 1 or min(levels) < 0:
            raise ValueError(f"the inputs of {name} are not at one level of fan-out")
        depths[name] = levels.pop()
        found[name] = _operator(item, inputs, readers[name], depths[name])
        if further := item.get("others", ()):
            others[name] = tuple(_operator(one, inputs, readers[name], depths[name]) for one in further)
    return found, others


def _operator(
    item: Mapping[str, Any], inputs: tuple[tuple[str, EdgeKind], ...], readers: list[Mapping[str, Any]], depth: int
) -> OperatorView:
    """An operator with one variant. `item`: its part of the document; `readers`: the edges out of it."""
    name, variant, model = item["name"], _text(item["variant"]), item.get("model") or {}
    ports = _port_names(model.get("ports") or {})
    wiring = OperatorWiring(inputs, tuple((edge["downstream"], cast(EdgeKind, edge["kind"])) for edge in readers))
    outputs = {edge["downstream"]: ports.output_of(edge.get("output")) for edge in readers}
    path, sha256 = (None if model.get(key) is None else _text(model[key]) for key in ("path", "sha256"))
    python = _python(model.get("python"))
    sent = {down: one for down, one in (outputs or {GATEWAY: ports.output}).items() if one}
    fed = ports.input_by_upstream(upstream for upstream, _ in inputs)
    parts = model.get("files") or ([{"path": path, "sha256": sha256}] if path and sha256 else [])
    files = tuple((str(part["path"]), str(part["sha256"])) for part in parts)
    state = {str(given): str(taken) for given, taken in item.get("state", ())}
    if state and depth:
        raise ValueError(f"a state by stream of {name}, which is below a fan-out")
    return OperatorView(name, variant, wiring, depth, path, sha256, sent, python, files, fed, state, ports)


def _port_names(item: Mapping[str, Any]) -> PortNames:
    names, outputs = dict(item.get("inputs", {})), dict(item.get("outputs", {}))
    rows_of, gathered_rows = dict(item.get("rows_of", {})), dict(item.get("gathered_rows", {}))
    constants = dict(item.get("constants", {}))
    return PortNames(names, item.get("output"), outputs, item.get("rows"), rows_of, gathered_rows, constants)


def _python(item: Mapping[str, Any] | None) -> PythonView | None:
    if item is None:
        return None
    return PythonView(str(item["function"]), str(item["arguments"]), str(item["module_sha256"]))


def _check_routes(view: PlanView) -> None:
    if not view.routes:
        raise PlanViewError("the plan has no route: nothing could be served")
    of_workflow: dict[str, set[str]] = {}
    for name in view.operators:
        of_workflow.setdefault(view.workflow_of(name), set()).add(name)
    for index, route in enumerate(view.routes):
        covered = {view.workflow_of(name) for name in route}
        wanted: set[str] = set().union(*(of_workflow.get(name, {name}) for name in covered))
        if not route or set(route) != wanted:
            raise PlanViewError(f"route {index} of the plan does not say where each operator runs")
        unknown = sorted(set(route.values()) - set(view.workers) | {w for w in route.values() if w == GATEWAY})
        if unknown:
            raise PlanViewError(f"route {index} of the plan names unknown workers: {', '.join(unknown)}")
