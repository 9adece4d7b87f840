"""Zero bubble: the backward is split in two, and weight gradients fill the gaps (Qi et al. 2024)."""

from __future__ import annotations

from jellybean_solver.pipeline.actions import Action, Kind
from jellybean_solver.pipeline.listing import Placed, Rules, listed
from jellybean_solver.pipeline.schedule import Schedule, flushed, straight

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
    """Two stages per device in a V: device s holds s and 2 D - 1 - s (section 6).

    The order is that of a greedy run in which all three passes take one slot, with the memory of 1F1B (2 D chunks):
    input gradients first, then forwards, of the later stage first; weight gradients when there is nothing else.
    """
    most = 2 * devices
    device_of = (*range(devices), *reversed(range(devices)))
    preferred = {INPUT: 0, FORWARD: 1, WEIGHT: 2}
    queues = [
        [
            [Action(kind, stage, m) for m in range(microbatches)]
            for stage in (most - 1 - device, device)
            for kind in (INPUT, FORWARD, WEIGHT)
        ]
        for device in range(devices)
    ]

    def order(most_entered: int) -> list[list[Placed]]:
        """`most_entered`: chunks that a device keeps, at most, when it lets a new micro-batch in."""

        def room(action: Action, kept: int) -> bool:
            return kept < (most if action.stage >= devices else most_entered)

        rules = Rules(
            dict.fromkeys((FORWARD, INPUT, WEIGHT), 1),
            keeps=WEIGHT,
            rank=lambda action: (preferred[action.kind], -action.stage),
            room=room,
        )
        return listed(queues, most - 1, rules)

    # One place at least stays free for the later stage, so that what came in can come back; how many more pay differs.
    orders = [order(entered) for entered in range(devices, most)]
    best = min(orders, key=lambda own: max(placed[-1].slot for placed in own))
    computes = [[placed.action for placed in own] for own in best]
    return flushed("zb-v", microbatches, (device_of,), computes)
