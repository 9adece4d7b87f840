"""Writes a draft as the documents of a project. They are JSON, which is YAML."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.matrix import draft as drafts
from tests.matrix.draft import Cascade, Draft, Input, Operator, Site, Times, Variant, Workflow
from tests.support.tiny_models import scale

PARTS = ("whole", "head", "tail")
ROWS = 4  # held-out requests of a workflow whose labels are needed


def write(draft: Draft, folder: Path) -> Path:
    """Write the project into a new folder, which is returned."""
    folder.mkdir(parents=True)
    _dump(folder / "infrastructure.yaml", infrastructure(draft))
    if draft.rows:
        (folder / "sites.csv").write_text(site_rows(draft), encoding="utf-8")
    for workflow in draft.workflows:
        own = folder / "workflows" / workflow.name if draft.is_several else folder
        own.mkdir(parents=True, exist_ok=True)
        _dump(own / "workflow.yaml", workflow_document(draft, workflow))
        _dump(own / "profiles.yaml", profiles(workflow))
        _write_files(workflow, own)
    return folder


def _dump(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _write_files(workflow: Workflow, folder: Path) -> None:
    """The models of operators that are cut, and the held-out requests, if the workflow names them."""
    if any(variant.cut for operator in workflow.operators for variant in operator.variants):
        for variant, part in itertools.product(drafts.NAMES, PARTS):
            file = folder / _file(variant, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_model(variant, part)[0])
    if _needs_labels(workflow):
        (folder / "data").mkdir()
        arrays = {source.name: np.zeros((ROWS, 4), np.float32) for source in workflow.sources}
        labels = np.zeros((ROWS, 4), np.float32)
        np.savez(folder / "data/heldout.npz", **arrays, labels=labels)


def _file(variant: str, part: str) -> str:
    return f"models/{variant}-{part}.onnx"


@cache
def _model(variant: str, part: str) -> tuple[bytes, str]:
    """A model of one input, unlike all others, and its sha256."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        digest = scale(path, 2.0 + len(PARTS) * drafts.NAMES.index(variant) + PARTS.index(part))
        return path.read_bytes(), digest


def infrastructure(draft: Draft) -> dict[str, Any]:
    workers = {
        pool.name: {
            "tier": pool.tier,
            "count": pool.count,
            "price": f"{pool.price_usd_per_h:g} USD/h",
            **({} if pool.memory_bytes is None else {"memory": _size(pool.memory_bytes)}),
            **({"sharing": "exclusive"} if pool.is_exclusive else {}),
            **({} if pool.power_w is None else _energy("power", f"{pool.power_w:g} W", pool.carbon_g_per_kwh)),
        }
        for pool in draft.pools
    }
    links = [
        {
            "from": link.upstream,
            "to": link.downstream,
            "price": f"{link.price_usd_per_gib:g} USD/GiB",
            "latency": _time(link.latency_s),
            **({} if link.bandwidth_bit_per_s is None else {"bandwidth": f"{link.bandwidth_bit_per_s:g} bit/s"}),
            **_energy("energy", f"{link.energy_wh_per_gib:g} Wh/GiB", link.carbon_g_per_kwh),
        }
        for link in draft.links
    ]
    found: dict[str, Any] = {"kind": "Infrastructure", "tiers": list(draft.tiers), "workers": workers, "links": links}
    sites: dict[str, Any] = dict(draft.sites)
    if draft.rows:
        sites[draft.tiers[0]] = "sites.csv"
    if sites:
        found["sites"] = sites
    if draft.start_usd:
        found["migration"] = {"start": f"{draft.start_usd:g} USD"}
    for name, price, unit, limit in (
        ("energy", draft.energy_usd_per_kwh, "USD/kWh", "W"),
        ("carbon", draft.carbon_usd_per_t, "USD/t", "g/h"),
    ):
        own = {} if price is None else {"price": f"{price:g} {unit}"}
        if name in draft.limits:
            own["limit"] = f"{draft.limits[name]:g} {limit}"
        if own:
            found[name] = own
    if draft.is_several and draft.budget_usd_per_h is not None:
        found["limits"] = {"budget": f"{draft.budget_usd_per_h:g} USD/h"}
    return found


def _energy(key: str, value: str, intensity: float) -> dict[str, str]:
    return {key: value, "carbon": f"{intensity:g} g/kWh"}


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "rate_per_s": ("sources.camera.rate", lambda value: f"{value:g}/s"),
    "box_count": ("workers.box.count", str),
    "bandwidth_bit_per_s": ("links.cloud.bandwidth", lambda value: f"{value:g} bit/s"),
    "accuracy": ("slo.accuracy", lambda value: f"{value:g}"),
    "worth_usd_per_h": ("admission.worth", lambda value: f"{value:g} USD/h"),
    "priority": ("admission.priority", str),
}


def site_rows(draft: Draft) -> str:
    """The file of sites that differ, with the columns that some site states."""
    used = [name for name in _COLUMNS if any(getattr(row, name) is not None for row in draft.rows)]
    first = f"{draft.workflows[0].name}." if draft.is_several else ""
    prefixes = {name: "" if name in ("box_count", "bandwidth_bit_per_s") else first for name in used}
    lines = [",".join(("site", *(prefixes[name] + _COLUMNS[name][0] for name in used)))]
    lines += [",".join((row.name, *(_cell(row, name) for name in used))) for row in draft.rows]
    return "\n".join(lines) + "\n"


def _cell(row: Site, name: str) -> str:
    value = getattr(row, name)
    return "" if value is None else _COLUMNS[name][1](value)


def workflow_document(draft: Draft, workflow: Workflow) -> dict[str, Any]:
    has_labels = _needs_labels(workflow)
    sources = {
        source.name: {
            "tier": source.tier,
            "rate": f"{source.rate_per_s:g}/s",
            "message": _size(source.message_bytes),
            **({} if source.stays_in is None else {"stays_in": list(source.stays_in)}),
            **({} if source.streams is None else {"streams": source.streams}),
            **({"deliver": "eventually"} if source.is_eventual else {}),
            **({"inputs": f"data/heldout.npz#{source.name}"} if has_labels else {}),
        }
        for source in workflow.sources
    }
    found: dict[str, Any] = {
        "kind": "Workflow",
        "name": workflow.name,
        "sources": sources,
        "operators": {operator.name: _operator(operator) for operator in workflow.operators},
        "slo": _slo(draft, workflow),
    }
    if has_labels:
        found |= {"labels": "data/heldout.npz#labels", "labels_of": workflow.sinks[0], "metric": "exact_match"}
    if workflow.objective != "cost":
        found["objective"] = workflow.objective
    if workflow.worth_usd_per_h is not None:
        found["admission"] = {"worth": f"{workflow.worth_usd_per_h:g} USD/h", "priority": workflow.priority}
    return found


def _needs_labels(workflow: Workflow) -> bool:
    """True if it must be said which of several answers is audited."""
    return workflow.audit is not None and len(workflow.sinks) > 1


def _operator(operator: Operator) -> dict[str, Any]:
    variants: dict[str, Any] = {}
    for variant in operator.variants:
        name, is_cut = variant.name, variant.cut is not None
        variants[name] = {"model": _file(name, "whole"), "sha256": _model(name, "whole")[1]} if is_cut else {}
    found: dict[str, Any] = {"inputs": [_input(operator.input)], "variants": variants}
    if operator.cascade is not None:
        rule = {"first": operator.cascade.first, "then": operator.cascade.then, "when": "confidence < 0.8"}
        variants["both"] = {"cascade": rule}
    if any(variant.cut for variant in operator.variants):
        found["cuts"] = 1
    if operator.tiers is not None:
        found["tiers"] = list(operator.tiers)
    if operator.has_state:
        found["state"] = {"by": "stream", "tensors": {"memory": "memory_next"}}
    return found


def _input(edge: Input) -> Any:
    found: dict[str, Any] = {"from": edge.upstream}
    if edge.ratio is not None:
        found["ratio"] = edge.ratio
    if edge.gather:
        found["gather"] = True
    if edge.stays_in is not None:
        found["stays_in"] = list(edge.stays_in)
    return found


def _slo(draft: Draft, workflow: Workflow) -> dict[str, Any]:
    found: dict[str, Any] = _accuracy_target(workflow)
    if workflow.latency_penalty_usd_per_h_s is not None:
        penalty = f"{workflow.latency_penalty_usd_per_h_s:g} USD/h per s"
        found["latency_p99"] = {"target": _time(workflow.latency_p99_s or 0.0), "penalty": penalty}
    elif workflow.latency_p99_s is not None:
        found["latency_p99"] = _time(workflow.latency_p99_s)
    if draft.budget_usd_per_h is not None and not draft.is_several:
        found["budget"] = f"{draft.budget_usd_per_h:g} USD/h"
    if workflow.survive:
        found["survive"] = list(workflow.survive)
    if workflow.margin is not None:
        longer, higher = workflow.margin
        found["margin"] = {"times": f"{100 * longer:g} %", "rates": f"{1 + higher:g}x"}
    if workflow.audit is not None:
        found["audit"] = f"{100 * workflow.audit:g} %"
    return found


def _accuracy_target(workflow: Workflow) -> dict[str, Any]:
    if workflow.mean_accuracy is None:
        return {} if workflow.accuracy is None else {"accuracy": workflow.accuracy}
    target: dict[str, Any] = {"mean": workflow.mean_accuracy}
    if workflow.accuracy is not None:
        target["least"] = workflow.accuracy
    if workflow.penalty_usd_per_h is not None:
        target["penalty"] = f"{workflow.penalty_usd_per_h:g} USD/h"
    return {"accuracy": target}


def profiles(workflow: Workflow) -> dict[str, Any]:
    operators = {
        operator.name: {variant.name: _profile(operator, variant) for variant in operator.variants}
        for operator in workflow.operators
    }
    cascades = {
        operator.name: {"both": _cascade(workflow, operator, operator.cascade)}
        for operator in workflow.operators
        if operator.cascade is not None
    }
    found = {"kind": "Profiles", "hop": "1 ms", "operators": operators, "accuracy": _accuracy(workflow)}
    return {**found, "cascades": cascades} if cascades else found


def _profile(operator: Operator, variant: Variant) -> dict[str, Any]:
    found: dict[str, Any] = {
        "message": _size(variant.message_bytes),
        "latency": _latency(variant.times, variant.memory_bytes),
    }
    if variant.cut is not None:
        digest = _model(variant.name, "whole")[1]
        head, tail = (
            {
                "model": _file(variant.name, part),
                "sha256": _model(variant.name, part)[1],
                "latency": _latency(own, variant.memory_bytes),
            }
            for part, own in (("head", variant.cut.head), ("tail", variant.cut.tail))
        )
        crossing = _size(variant.cut.crossing_bytes)
        inputs = [operator.input.upstream]
        found["cuts"] = [
            {"layers": 1, "of": 2, "crossing": crossing, "inputs": inputs, "whole": digest, "head": head, "tail": tail}
        ]
    return found


def _latency(table: dict[str, Times], memory: dict[str, float]) -> dict[str, Any]:
    return {
        pool: {
            str(size): {"mean": _time(seconds), **({"memory": _size(memory[pool])} if pool in memory else {})}
            for size, seconds in own.items()
        }
        for pool, own in table.items()
    }


def _cascade(workflow: Workflow, operator: Operator, cascade: Cascade) -> dict[str, Any]:
    by_name = {variant.name: variant for variant in operator.variants}
    first, then = by_name[cascade.first], by_name[cascade.then]
    size = upstream_bytes(workflow, operator)
    memory = {pool: 0.0 for pool in cascade.step_s if first.memory_bytes}
    step = _latency({pool: {1: seconds} for pool, seconds in cascade.step_s.items()}, memory)
    shares = [f"{100 * (1 - cascade.passed_on):g} %", f"{100 * cascade.passed_on:g} %"]
    operators = {
        f"{operator.name}.first": {first.name: _profile(operator, first)},
        f"{operator.name}.unsure": {"both": {"message": _size(size), "latency": step, "children": shares}},
        f"{operator.name}.then": {then.name: _profile(operator, then)},
        operator.name: {"both": {"message": _size(first.message_bytes), "latency": step}},
    }
    return {"operators": operators, "accuracy": {"end_to_end": list(_rows(workflow, operator))}}


def upstream_bytes(workflow: Workflow, operator: Operator) -> float:
    """Bytes of what a cascade passes on: the largest message that goes into its operator."""
    sources = {source.name: source.message_bytes for source in workflow.sources}
    upstream = operator.input.upstream
    if upstream in sources:
        return sources[upstream]
    own = next(one for one in workflow.operators if one.name == upstream)
    return max(variant.message_bytes for variant in own.variants)


def _accuracy(workflow: Workflow) -> dict[str, Any]:
    if workflow.audit is None:
        return {
            "independent": {
                operator.name: {variant.name: variant.accuracy for variant in operator.variants}
                for operator in workflow.operators
            }
        }
    rows = list(_rows(workflow, None))
    best = max(rows, key=lambda row: row["accuracy"])
    for row in rows:
        row["agreement"] = 100 if row is best else 90
    return {"end_to_end": rows, "reference": best["selection"], "requests": 1000}


def _rows(workflow: Workflow, cascaded: Operator | None) -> Iterator[dict[str, Any]]:
    """The accuracy of each selection; of an operator that is a cascade that of the cascade."""
    free = [operator for operator in workflow.operators if operator is not cascaded]
    constant = cascaded.cascade.accuracy if cascaded is not None and cascaded.cascade is not None else 100.0
    for chosen in itertools.product(*(operator.variants for operator in free)):
        accuracy = constant
        for variant in chosen:
            accuracy *= variant.accuracy / 100.0
        pairs = zip(free, chosen, strict=True)
        selection = {one.name: variant.name for one, variant in pairs if len(one.variants) > 1}
        yield {"selection": selection, "accuracy": float(f"{accuracy:.10g}")}


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.10g} ms"


def _size(size: float) -> str:
    return f"{size:.10g} B"
