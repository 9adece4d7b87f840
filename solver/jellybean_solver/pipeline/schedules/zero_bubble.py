"""Zero-bubble schedules: the backward is split, and weight gradients fill the bubbles (Qi et al. 2024)."""

from __future__ import annotations

from collections import Counter

from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.list_scheduling import ListRules, list_schedule
from jellybean_solver.pipeline.schedule.schedule import Schedule, round_robin_stages, synchronous_schedule
from jellybean_solver.pipeline.schedule.simulator import ScheduleCosts, simulate

FORWARD, INPUT, WEIGHT = ActionKind.FORWARD, ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT


def zb_h1(devices: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B with the weight gradients of stage s delayed by s micro-batches (figure 2).

    No stage keeps more activations than the first stage of 1F1B.
    """
    compute_actions = []
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
        compute_actions.append(actions)
    return synchronous_schedule("zb-h1", microbatches, round_robin_stages(devices), compute_actions)


def zb_v(devices: int, microbatches: int) -> Schedule:
    """ZB-V: two stages per device in a V; device s of D holds stages s and 2 D - 1 - s (section 6, figure 6).

    The order assumes equal times of forward, input gradient and weight gradient. Then, from 2 D - 1 micro-batches on,
    no device is idle between its first and last action, with the memory of 1F1B (2 D activations of half-size stages).
    For fewer micro-batches, the result is the faster of two orders: the published one without the missing
    micro-batches, and a list schedule within the same memory.
    """
    device_of = ((*range(devices), *reversed(range(devices))),)
    published = synchronous_schedule("zb-v", microbatches, device_of, _published(devices, microbatches))
    if microbatches >= 2 * devices - 1:
        return published
    greedy = synchronous_schedule("zb-v", microbatches, device_of, _greedy(devices, microbatches))
    equal = ScheduleCosts(1.0, input_s=1.0, weight_s=1.0)
    return min(published, greedy, key=lambda one: simulate(one, equal).makespan_s)


def _published(devices: int, microbatches: int) -> list[list[Action]]:
    whole = max(microbatches, 2 * devices - 1)
    compute_actions = []
    for device in range(devices):
        near, far, left = device, 2 * devices - 1 - device, devices - device
        back = [(INPUT, near), (WEIGHT, near), (FORWARD, far), (INPUT, far), (WEIGHT, far)]
        order = [(FORWARD, near)] * (2 * left - 1) + [(FORWARD, far), (FORWARD, near)] * device
        order += back[2:] * left
        order += [(FORWARD, near), *back] * (whole - devices - left + 1) + back * (left - 1)
        order += [(INPUT, near), (INPUT, far)] * device + [(INPUT, near), (WEIGHT, near)] * left
        order += [(WEIGHT, far)] * device + [(WEIGHT, near)] * device
        done: Counter[tuple[ActionKind, int]] = Counter()
        actions = []
        for kind, stage in order:
            actions.append(Action(kind, stage, done[kind, stage]))
            done[kind, stage] += 1
        compute_actions.append([action for action in actions if action.microbatch < microbatches])
    return compute_actions


def _greedy(devices: int, microbatches: int) -> list[list[Action]]:
    """List schedule: input gradients, then forwards, later stages first; weight gradients fill idle slots.

    One activation slot is reserved for the later stage; otherwise forwards of the first stage could fill the memory and
    deadlock.
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
    rules = ListRules(
        dict.fromkeys((FORWARD, INPUT, WEIGHT), 1),
        frees_activation=WEIGHT,
        priority=lambda action: (preferred[action.kind], -action.stage),
        has_memory=lambda action, live: live < (most if action.stage >= devices else most - 1),
    )
    return [[placed.action for placed in own] for own in list_schedule(queues, most - 1, rules)]
