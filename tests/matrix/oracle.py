"""What a draft's best plan costs, by the program over everything."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.brute_force.pattern_program import Block, Optimum, Program
from tests.matrix.draft import Draft, served
from tests.matrix.patterns import program


def best(draft: Draft, *, limit_s: float = 20.0) -> Optimum | None:
    """The least cost, penalties and worth of what is left out; None if no plan exists. p99 latencies are left out.

    With priorities those of each level are decided together with those above, and stand from then on.
    """
    fleet, blocks, patterns = program(draft)
    is_accuracy = draft.workflows[0].objective == "mean_accuracy"
    priorities = {one.name: one.workflow.priority for one in served(draft)}
    optional = {block.group for block in blocks if block.worth_usd_per_h is not None}
    gone: set[str] = set()
    must: set[str] = set()
    for level in sorted({priorities[name] for name in optional}, reverse=True)[:-1]:
        own = {name for name in optional if priorities[name] == level}
        waiting = {name for name in optional if priorities[name] < level}
        known = Program(fleet, _decided(blocks, must, gone | waiting), patterns_of(patterns, gone | waiting))
        found = known.best(most_accurate=is_accuracy, limit_s=limit_s)
        left = own if found is None else found.left_out & own
        must |= own - left
        gone |= left
    kept = _decided(blocks, must, gone)
    if not kept:
        return None
    result = Program(fleet, kept, patterns_of(patterns, gone)).best(most_accurate=is_accuracy, limit_s=limit_s)
    forgone = math.fsum(block.worth_usd_per_h or 0.0 for block in blocks if block.group in gone)
    if result is None or {block.group for block in kept} <= result.left_out:  # to serve nobody is no plan
        return None
    if is_accuracy:  # of those that are left out it counts as 0
        share = len({block.group for block in kept}) / len({block.group for block in blocks})
        return Optimum(result.value * share, result.bound * share, result.left_out | gone)
    return Optimum(result.value + forgone, result.bound + forgone, result.left_out | gone)


def patterns_of(patterns: list, gone: set[str]) -> list:
    return [one for one in patterns if one.block.split("#")[0] not in gone]


def _decided(blocks: list[Block], must: set[str], gone: set[str]) -> list[Block]:
    return [
        replace(block, worth_usd_per_h=None) if block.group in must else block
        for block in blocks
        if block.group not in gone
    ]
