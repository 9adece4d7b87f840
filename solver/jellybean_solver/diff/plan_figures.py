"""Numbers that differ between two plan documents: targets, sources, links, service times, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jellybean_solver.model.plan import Plan
from jellybean_solver.model.plan_document import json_values

FIGURE_TOLERANCE = 1e-9  # relative: smaller differences are rounding errors


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure by its path in the plan, such as `slo.latency_p99_s` or `operators.find.service.box.1.load_s`.

    Values as in the plan document; None if it is null there or absent.
    """

    figure: str
    before: Any
    after: Any


def figure_changes(before: Plan, after: Plan) -> Iterator[FigureChange]:
    """Changed figures, sorted by path.

    An operator's figures are compared only in pools where both plans run it with equal variant and batch size; figures
    of workers only in pools that both plans use.
    """
    one, two = _stated(before), _stated(after)
    shared_one, shared_two = _measured(before), _measured(after)
    both = shared_one.keys() & shared_two.keys()
    one |= _flat({key: shared_one[key] for key in both})
    two |= _flat({key: shared_two[key] for key in both})
    for path in sorted(one.keys() | two.keys()):
        was, now = one.get(path), two.get(path)
        if not is_same(was, now):
            yield FigureChange(".".join(path), was, now)


def _stated(plan: Plan) -> dict[tuple[str, ...], Any]:
    return _flat(
        {
            ("slo",): json_values(plan.slo),
            ("utilisation",): plan.utilisation,
            ("hop_s",): plan.hop_s,
            ("sites",): dict(plan.sites),
            **{("sources", source.name): _rest(json_values(source), "name") for source in plan.sources},
            **{
                ("links", link.upstream_tier, link.downstream_tier): _rest(
                    json_values(link), "upstream_tier", "downstream_tier"
                )
                for link in plan.links
            },
        }
    )


def _measured(plan: Plan) -> dict[tuple[str, ...], Any]:
    """Figures by path, with the choice (variant, batch size or tier) as a path element that starts with "=".

    Only plans with equal choices share such a key. `_flat` drops these elements.
    """
    found: dict[tuple[str, ...], Any] = {}
    for item in plan.variants:
        name, choice = ("operators", item.name), f"={item.variant}"
        found[*name, choice] = {"children": list(item.children), "batch_delay_s": item.batch_delay_s}
        for downstream, size in item.message_bytes.items():
            found[*name, "message_bytes", downstream, choice] = size
        for edge in item.inputs:
            found[*name, "inputs", edge.upstream, choice] = _rest(json_values(edge), "upstream", "downstream")
        for key in ("service", "memory_bytes", "device_memory_bytes"):
            for pool, figure in getattr(item, key).items():
                found[*name, key, pool, f"{choice} x {item.batch[pool]}"] = json_values(figure)
    for worker in plan.workers:
        keys = (
            "price_usd_per_h",
            "sharing",
            "memory_bytes",
            "speed",
            "device",
            "device_options",
            "device_memory_bytes",
        )
        figures = {key: json_values(getattr(worker, key)) for key in keys}
        found["workers", worker.pool, f"={worker.tier}"] = figures
    return found


def _rest(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in names}


def _flat(values: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Flatten nested mappings to one entry per figure; a list is one figure."""
    found: dict[tuple[str, ...], Any] = {}
    for path, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat({(*path, str(key)): item for key, item in value.items()})
        else:
            found[tuple(part for part in path if not part.startswith("="))] = value
    return found


def is_same(one: Any, two: Any) -> bool:
    """True if two figures, or sequences of figures, are equal up to rounding errors."""
    if isinstance(one, float | int) and isinstance(two, float | int):
        return math.isclose(one, two, rel_tol=FIGURE_TOLERANCE, abs_tol=1e-12)
    if isinstance(one, Sequence) and isinstance(two, Sequence) and not isinstance(one, str):
        return len(one) == len(two) and all(map(is_same, one, two))
    return bool(one == two)
