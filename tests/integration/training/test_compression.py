"""Messages of each boundary have the type that was chosen for it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

import torch.distributed as dist

from jellybean.training import Rank
from jellybean.training.processes.tensor_messages import ACTIVATIONS, GRADIENTS, MessageKey
from jellybean.training.stages.stage_transport import start_transport
from jellybean_solver.pipeline import make_schedule
from tests.integration.training.ranks import run_ranks

EXACT = 1.0 + 2.0**-20  # rounded to 1 by bfloat16


@dataclass(frozen=True)
class Exchange:
    """Three stages on three ranks: the middle one sends activations to the last and gradients to the first."""

    compress: tuple[str, ...] | str
    size: int = 3

    def __call__(self, rank: int) -> float | None:
        schedule, stages = make_schedule("1f1b", 3, 3), 3
        here = Rank(rank, 3, torch.device("cpu"))
        transport = start_transport(here, schedule, 1, dist.new_group(backend="gloo"), self.compress)
        values = (torch.full((self.size,), EXACT),)
        if rank == 1:
            transport.send(0, MessageKey(0, GRADIENTS, 1 * stages + 0, 0, 0), values)
            transport.send(2, MessageKey(0, ACTIVATIONS, 1 * stages + 2, 0, 0), values)
        found = None
        if rank == 0:
            (value,) = transport.take(MessageKey(0, GRADIENTS, 1 * stages + 0, 0, 0))
            found = float(value[0])
        if rank == 2:
            (value,) = transport.take(MessageKey(0, ACTIVATIONS, 1 * stages + 2, 0, 0))
            found = float(value[0])
        transport.close()
        return found


def test_each_boundary_has_its_type():
    """Small messages are sent inline, large ones by themselves."""
    rounded, exact = 1.0, float(torch.tensor(EXACT))
    assert rounded != exact
    found = run_ranks(
        3,
        [
            Exchange(("bfloat16", "none")),
            Exchange(("none", "bfloat16"), size=100_000),
            Exchange("bfloat16"),
            Exchange("none"),
        ],
    )
    assert found == [
        [rounded, None, exact],
        [exact, None, rounded],
        [rounded, None, rounded],
        [exact, None, exact],
    ]
