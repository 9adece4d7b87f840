"""Finds infinity and nan in what a checkpoint would hold: a run that resumed from it could not go on."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from jellybean.training.checkpoints.states import AVERAGE, BUFFER, NUMBER, STATE, WEIGHT

_KINDS = {WEIGHT: "the weight", BUFFER: "the buffer", AVERAGE: "the average of the weight"}


def not_finite(state: Mapping[str, torch.Tensor]) -> str:
    """What the first tensor with infinity or nan is, by the model's names; empty if there is none.

    `state`: by the names of a checkpoint. A sum is finite only if all its terms are, and takes a tenth of the time of
    looking at each; as the sum of finite terms may overflow, the tensors whose sum is not finite are looked at.
    """
    sums = {name: value.detach().sum() for name, value in state.items() if _may_be_wrong(value)}
    by_device: dict[torch.device, list[str]] = {}
    for name, total in sums.items():
        by_device.setdefault(total.device, []).append(name)
    for names in by_device.values():
        finite = torch.stack([torch.isfinite(sums[name]) for name in names])  # the host waits once, for all of them
        for name, is_finite in zip(names, finite.tolist(), strict=True):
            if not is_finite and not torch.isfinite(state[name]).all():
                return _described(name)
    return ""


def _may_be_wrong(value: torch.Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _described(name: str) -> str:
    if name.startswith(STATE):
        weight, _, key = name.removeprefix(STATE).rpartition("/")
        return f"the optimizer's {key.removesuffix(NUMBER)} of {weight}"
    kind, _, rest = name.partition("/")
    return f"{_KINDS[kind + '/']} {rest}"
