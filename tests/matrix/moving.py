"""The cheapest change of a running plan: the program over everything, with what each worker must load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tests.brute_force.pattern_program import Block, Fleet, Held, Model, Optimum, Pattern, Program, all_sets
from tests.matrix.draft import GIB, Draft, served
from tests.matrix.patterns import program

Running = list[tuple[str, frozenset[Model]]]  # pool, and the models that one worker holds


def cheapest_change(draft: Draft, before: Mapping[str, Any], horizon_h: float) -> Optimum | None:
    """The least USD per hour over the horizon, with penalties, forgone worth and the price of what is loaded."""
    fleet, blocks, patterns = program(draft)
    moving = Moving(fleet, blocks, patterns, running(draft, before), _load_usd(draft, fleet), horizon_h)
    return moving.best()


def running(draft: Draft, before: Mapping[str, Any]) -> Running:
    """What the workers of a plan's document hold, by the names of the oracle."""
    names = {_planned_name(draft, one.name): one.name for one in served(draft)}
    operators = {operator["name"]: operator for operator in before["operators"]}
    found = []
    for worker in before["workers"]:
        models = set()
        for name in worker["rates_per_s"]:
            workflow, _, own = name.rpartition("/")
            operator = operators[name]
            variant = worker.get("variants", {}).get(name, operator["variant"])
            stage = next(
                (one.get("stage") for one in (operator, *operator.get("others", ())) if one["variant"] == variant), None
            )
            if stage is not None:
                variant = stage["variant"] if own.endswith(".head") else f"{stage['variant']} tail"
            models.add((f"{names.get(workflow, workflow)}/{own}", variant))
        found.append((worker["pool"], frozenset(models)))
    return found


def _planned_name(draft: Draft, name: str) -> str:
    """What a plan calls a workflow of the oracle: nothing if there is one."""
    if not draft.rows:
        return name if draft.is_several else ""
    site, _, workflow = name.partition("/")
    return f"{workflow}@{site}" if draft.is_several else site


def _load_usd(draft: Draft, fleet: Fleet) -> dict[tuple[str, Model], float]:
    """USD for one more worker of a pool that loads a model, in all sites: its start, and its download over the link."""
    prices = {draft.tiers[-1]: 0.0} | {link.upstream: draft.price(link) for link in draft.links}
    return {
        (pool.name, model): pool.sites
        * (draft.start_usd + prices[pool.tier.split("/")[0]] * pool.memory_bytes.get(model, 0.0) / GIB)
        for pool in fleet.pools
        for model in pool.seconds
    }


class Moving(Program):
    """A binary column for each running worker and each set of models that it may hold next; new ones load all."""

    def __init__(
        self,
        fleet: Fleet,
        blocks: Iterable[Block],
        patterns: Iterable[Pattern],
        before: Running,
        load_usd: Mapping[tuple[str, Model], float],
        horizon_h: float,
    ) -> None:
        super().__init__(fleet, blocks, patterns, all_sets)
        for pool in fleet.pools:
            counts = {held: column for (name, held), column in self.counts.items() if name == pool.name}
            begun: dict[Held, list[int]] = {held: [] for held in counts}

            def load(held: Held, had: frozenset[Model], most: float, name: str = pool.name) -> int:
                usd = math.fsum(load_usd[name, model] for model in held if model not in had)
                return self._unpaid(usd / horizon_h, most, whole=True)

            for had in (models for name, models in before if name == pool.name):
                taken = {held: load(held, had, 1.0) for held in counts}
                self.row(dict.fromkeys(taken.values(), 1.0), -math.inf, 1.0)
                for held, column in taken.items():
                    begun[held].append(column)
            for held, count in counts.items():
                empty = load(held, frozenset(), float(pool.count))
                self.row(dict.fromkeys([*begun[held], empty], 1.0) | {count: -1.0}, 0.0, 0.0)
