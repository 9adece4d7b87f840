"""Zero bubble: the backward is split in two, and weight gradients fill the gaps (Qi et al. 2024)."""

from __future__ import annotations

from collections import Counter

from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule, flushed, straight
from jellybean_solver.pipeline.schedule.simulator import Costs, simulate
from jellybean_solver.pipeline.schedule.slot_filling import Rules, listed

FORWARD, INPUT, WEIGHT = Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT


def zb_h1(devices: int, microbatches: int) -> Schedule:
    """1F1B with the weight gradients of stage s held back for s micro-batches (figure 2).

    So no stage needs more memory than the first one of 1F1B.
    """
    computes = []
    for stage in range(devices):
        ahead = min(devices - 1 - stage, microbatches)
        actions = [Action(FORWARD, stage, m) for m in range(ahead)]
        weights = 0  # weight gradients done
        for m in range(microbatches):
            actions += [Action(FORWARD, stage, ahead + m)] if ahead + m < microbatches else []
            actions.append(Action(INPUT, stage, m))
            if m - weights >= stage or ahead + m >= microbatches:
                actions.append(Action(WEIGHT, stage, weights))
                weights += 1
        actions += [Action(WEIGHT, stage, m) for m in range(weights, microbatches)]
        computes.append(actions)
    return flushed("zb-h1", microbatches, straight(devices), computes)


def zb_v(devices: int, microbatches: int) -> Schedule:
    """Two stages per device in a V: device s holds s and 2 D - 1 - s (section 6, figure 6).

    The order is for three passes of equal time: from 2 D - 1 micro-batches on, no device then waits between its first
    and its last pass, with the memory of 1F1B (2 D stages' activations). With fewer, the published order without those
    that are not there or, where it is shorter, a greedy one in the same memory.
    """
    device_of = ((*range(devices), *reversed(range(devices))),)
    published = flushed("zb-v", microbatches, device_of, _published(devices, microbatches))
    if microbatches >= 2 * devices - 1:
        return published
    greedy = flushed("zb-v", microbatches, device_of, _greedy(devices, microbatches))
    equal = Costs(1.0, input_s=1.0, weight_s=1.0)
    return min(published, greedy, key=lambda one: simulate(one, equal).makespan_s)


def _published(devices: int, microbatches: int) -> list[list[Action]]:
    whole = max(microbatches, 2 * devices - 1)
    computes = []
    for device in range(devices):
        near, far, left = device, 2 * devices - 1 - device, devices - device
        back = [(INPUT, near), (WEIGHT, near), (FORWARD, far), (INPUT, far), (WEIGHT, far)]
        order = [(FORWARD, near)] * (2 * left - 1) + [(FORWARD, far), (FORWARD, near)] * device
        order += back[2:] * left
        order += [(FORWARD, near), *back] * (whole - devices - left + 1) + back * (left - 1)
        order += [(INPUT, near), (INPUT, far)] * device + [(INPUT, near), (WEIGHT, near)] * left
        order += [(WEIGHT, far)] * device + [(WEIGHT, near)] * device
        done: Counter[tuple[Kind, int]] = Counter()
        actions = []
        for kind, stage in order:
            actions.append(Action(kind, stage, done[kind, stage]))
            done[kind, stage] += 1
        computes.append([action for action in actions if action.microbatch < microbatches])
    return computes


def _greedy(devices: int, microbatches: int) -> list[list[Action]]:
    """Input gradients first, then forwards, of the later stage first; weight gradients when there is nothing else.

    One place always stays free for the later stage, so that what came in can come back.
    """
    most = 2 * devices
    preferred = {INPUT: 0, FORWARD: 1, WEIGHT: 2}
    queues = [
        [
            [Action(kind, stage, m) for m in range(microbatches)]
            for stage in (most - 1 - device, device)
            for kind in (INPUT, FORWARD, WEIGHT)
        ]
        for device in range(devices)
    ]
    rules = Rules(
        dict.fromkeys((FORWARD, INPUT, WEIGHT), 1),
        keeps=WEIGHT,
        rank=lambda action: (preferred[action.kind], -action.stage),
        room=lambda action, kept: kept < (most if action.stage >= devices else most - 1),
    )
    return [[placed.action for placed in own] for own in listed(queues, most - 1, rules)]
