"""The training state of a server's weights as a message: weights, their averages, the optimizer's state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import torch

from jellybean.training.checkpoints.states import collect_state, restore_state, weight_of
from jellybean.training.optimization.torch_classes import without_lists
from jellybean.training.parameter_server.channel import Channel, Header
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.weights import stage_of
from jellybean.training.setup import RankRun
from jellybean.training.stages.updates import GroupSettings


def send_state(channel: Channel, run: RankRun, names: Collection[str], header: Header) -> None:
    """Send the state of these weights; the header's other keys are the caller's."""
    state = {key: value for key, value in collect_state(run.held, run.updates).items() if weight_of(key) in names}
    flat = FlatTensors(state)
    flat.put(state)
    listed = [[key, str(view.dtype).removeprefix("torch."), list(view.shape)] for key, view in flat.views.items()]
    channel.send({**header, "tensors": listed}, flat.memory)


def receive_state(channel: Channel, run: RankRun, header: Header) -> None:
    """Receive the state of some weights into a run; the other ones stay as they are."""
    listed = {
        key: torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for key, dtype, shape in header["tensors"]
    }
    flat = FlatTensors(listed)
    channel.receive_into(flat.memory, header)
    merged = {**collect_state(run.held, run.updates), **flat.views}
    restore_state(merged, run.held, run.updates, frozenset(stage_of(run).versions.given))


def settings_to_json(settings: Sequence[GroupSettings]) -> list[Any]:
    """Settings by update; equal ones that follow each other are written once, with their number."""
    return [[[dict(group) for group in one], len(list(same))] for one, same in groupby(settings)]


def settings_from_json(written: Sequence[Any]) -> list[GroupSettings]:
    """Settings by update, with tuples as torch's classes expect."""
    return [
        [{name: without_lists(value) for name, value in group.items()} for group in one]
        for one, count in written
        for _ in range(count)
    ]
