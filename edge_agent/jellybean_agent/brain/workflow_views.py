"""The workflows of a plan, each as a view of its own, so that a gateway serves it as if it were alone.

A view has the workflow's sources, operators, routes, targets and cost only, under their own names. Workers of the plan
know them as WORKFLOW/NAME, and the plan's routes by other numbers: `PlanView.qualified` and `PlanView.plan_route`. A
worker that workflows share costs each the part of its price that corresponds to its part of the planned busy time. A
view's fallbacks have the weights of its routes, but say which routes of the plan are closed: after a loss that closes
none of its own, a workflow may have to leave workers to another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jellybean_agent.brain.plan_reading import no_plan, plan_view, view_of_part
from jellybean_agent.brain.plan_view import Fallback, PlanView
from jellybean_protos import plan_format
from jellybean_protos.plan_format import qualified_name

_Item = Mapping[str, Any]


def workflow_views(document: Any) -> Mapping[str, PlanView]:
    """Workflow -> its view, for a plan document. A plan of one workflow has one view, of the whole plan.

    PlanViewError as of `plan_view`.
    """
    whole = plan_view(document)
    if not whole.workflows:
        return {whole.name: whole}
    variants = {worker: whole.variants_of(worker) for worker in whole.workers}
    views = ((name, _view(document, name)) for name in whole.workflows)
    return {
        name: replace(view, plan_variants=variants, fallbacks=tuple(_own_weights(view, one) for one in whole.fallbacks))
        for name, view in views
    }


def plan_part(document: Mapping[str, Any], workflow: str) -> dict[str, Any]:
    """A plan document of one of a plan's workflows, as if it were served alone by its parts of the workers.

    Its hash is another than that of the plan that is served. KeyError if the plan has no such workflow.
    """
    if workflow not in [item["name"] for item in document["workflows"]]:
        raise KeyError(workflow)
    part, _ = _part(document, workflow)
    return plan_format.with_header({key: part[key] for key in part if key not in plan_format.HEADER_KEYS})


def _view(document: _Item, workflow: str) -> PlanView:
    try:
        part, numbers = _part(document, workflow)
    except plan_format.UNREADABLE as error:
        raise no_plan(error) from error
    view = view_of_part(part)
    figures = replace(view.figures, bound_usd_per_h=None, gap=None)  # the proof is one of all workflows together
    total = len(document["routes"])
    survives = any(item["slo"].get("survives") for item in document["workflows"])
    audit = None if view.audit is None else replace(view.audit, yields=survives)
    return replace(view, figures=figures, workflow=workflow, route_numbers=numbers, plan_routes=total, audit=audit)


def _own_weights(view: PlanView, fallback: Fallback) -> Fallback:
    """A fallback of the plan with the weights of one workflow's routes; what it closes is told by all workflows'."""
    own = view.route_numbers if fallback.weights else ()
    return replace(fallback, weights=tuple(fallback.weights[number] for number in own))


def _part(document: _Item, workflow: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """A document of one of the workflows, and the number of each of its routes in the whole plan."""
    own = next(item for item in document["workflows"] if item["name"] == workflow)
    operators = {item["name"]: item for item in document["operators"]}
    names = _Names(workflow)
    routes = [
        (number, {**route, "workers": names.keys(route["workers"])}) for number, route in enumerate(document["routes"])
    ]
    routes = [(number, route) for number, route in routes if route["workers"]]
    used = {worker for _, route in routes for worker in route["workers"].values()}
    part = {
        **document,
        "slo": own["slo"],
        "cost": own["cost"],
        "accuracy": own["accuracy"],
        "workflows": [],
        "sources": [names.named(item) for item in names.items(document["sources"])],
        "operators": [_operator(item, names) for item in names.items(document["operators"])],
        "workers": [_worker(item, operators, names) for item in document["workers"] if item["name"] in used],
        "routes": [route for _, route in routes],
        "spread": names.keys(document.get("spread", {})),
        "fallbacks": [],
    }
    if own.get("audit") is not None:
        part["audit"] = own["audit"]
    return part, tuple(number for number, _ in routes)


class _Names:
    """The names of a workflow, as it knows them itself."""

    def __init__(self, workflow: str) -> None:
        self._prefix = qualified_name(workflow, "")

    def owns(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def own(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def items(self, items: Iterable[_Item]) -> list[_Item]:
        """Those that the workflow has."""
        return [item for item in items if self.owns(item["name"])]

    def named(self, item: _Item) -> dict[str, Any]:
        return {**item, "name": self.own(item["name"])}

    def keys(self, table: _Item) -> dict[str, Any]:
        """The entries of the workflow's operators or sources."""
        return {self.own(name): value for name, value in table.items() if self.owns(name)}


def _operator(item: _Item, names: _Names) -> dict[str, Any]:
    found = names.named(item)
    found["inputs"] = [
        {**edge, "upstream": names.own(edge["upstream"]), "downstream": found["name"]} for edge in item["inputs"]
    ]
    if item.get("others"):
        found["others"] = [_operator(other, names) for other in item["others"]]
    for table in ("message_bytes", "ratios"):  # by downstream
        if item.get(table):
            found[table] = {names.own(name): value for name, value in item[table].items()}
    if ports := (item.get("model") or {}).get("ports"):
        renamed = {
            table: {names.own(upstream): name for upstream, name in ports[table].items()}
            for table in ("inputs", "gathered_rows")
            if table in ports
        }
        found["model"] = {**item["model"], "ports": {**ports, **renamed}}
    return found


def _worker(item: _Item, operators: Mapping[str, _Item], names: _Names) -> dict[str, Any]:
    rates, variants = item["rates_per_s"], item.get("variants") or {}
    busy = {
        name: rate * _request_s(_run_here(operators[name], variants.get(name)), item["pool"])
        for name, rate in rates.items()
    }
    total = sum(busy.values())
    own = [name for name in busy if names.owns(name)]
    share = sum(busy[name] for name in own) / total if total > 0 else len(own) / max(1, len(busy))
    found = {**item, "price_usd_per_h": item["price_usd_per_h"] * share, "rates_per_s": names.keys(rates)}
    if item.get("variants"):
        found["variants"] = names.keys(item["variants"])
    return found


def _run_here(operator: _Item, variant: str | None) -> _Item:
    """An operator as the variant that a worker runs; None: the only one."""
    every = (operator, *operator.get("others", ()))
    return next((one for one in every if one["variant"] == variant), operator)


def _request_s(operator: _Item, pool: str) -> float:
    """Seconds of a worker's time per request in full batches, as the plan counts them."""
    batch = int(operator["batch"][pool])
    return float(operator["service"][pool][str(batch)]["load_s"]) / batch
