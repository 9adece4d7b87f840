"""Reference training from the definitions: on one device, and the asynchronous update rules in sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.func import functional_call

from tests.integration.training.cases import Train
from tests.integration.training.nets import LAYERS, loss

Version = Callable[[int, int], int]  # stage, micro-batch -> updates that the weights it uses have had


def one_device(train: Train) -> list[dict[str, torch.Tensor]]:
    """The weights and statistics after each iteration: all micro-batches together (one by one with batch norm)."""
    chain = train.chain()
    optimizer = train.optimizer(chain.parameters(), **train.options)
    found = []
    for iteration in range(len(train.sizes)):
        optimizer.zero_grad()
        every = [batch for own in train.data(iteration) for batch in own]
        samples = sum(len(x) for x, _ in every)
        for x, y in every if train.norm else [tuple(map(torch.cat, zip(*every, strict=True)))]:
            (loss(chain(x), y) * len(x) / samples).backward()
        if train.clip is not None:
            torch.nn.utils.clip_grad_norm_(chain.parameters(), train.clip)
        optimizer.step()
        found.append({name: value.detach().clone() for name, value in chain.named_parameters(remove_duplicate=False)})
        found[-1] |= {name: value.clone() for name, value in chain.named_buffers()}
    return found


def in_sequence(train: Train, period: int, stages: int, version: Version) -> dict[str, torch.Tensor]:
    """One iteration without a flush: update by update, each stage's gradient on the weights that its rule names.

    The optimizer steps on the latest weights; `version(stage, microbatch)` is what forward and backward see.
    """
    chain = train.chain()
    history = [{name: value.detach().clone() for name, value in chain.named_parameters()}]
    optimizer = train.optimizer(chain.parameters(), **train.options)
    every = train.data(0)
    count = len(every[0])
    for update in range(count // period):
        numbers = range(update * period, (update + 1) * period)
        samples = sum(len(replica[number][0]) for replica in every for number in numbers)
        optimizer.zero_grad()
        for number in numbers:
            seen = {
                name: history[version(stage_of(name, stages), number)][name].clone().requires_grad_()
                for name in history[0]
            }
            own = [replica[number] for replica in every]
            total = sum(loss(functional_call(chain, seen, (x,)), y) * len(x) for x, y in own) / samples
            gradients = torch.autograd.grad(total, list(seen.values()))
            for value, gradient in zip(chain.parameters(), gradients, strict=True):
                value.grad = gradient if value.grad is None else value.grad + gradient
        optimizer.step()
        history.append({name: value.detach().clone() for name, value in chain.named_parameters()})
    return history[-1]


def stage_of(name: str, stages: int) -> int:
    """Of a parameter of the chain."""
    return int(name.split(".")[1]) * stages // LAYERS


def relative_error(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float:
    """Of the change since the start, the largest over the weights, by norms; of a weight that hardly moves (a bias
    before a batch norm) against a millionth of the largest change.
    """
    changes = {name: float((expected[name] - start[name]).norm()) for name in found}
    least = 1e-6 * max(changes.values())
    return max(float((found[name] - expected[name]).norm()) / max(changes[name], least) for name in found)
