"""The weights of a server: gradients that are missing, sparse, and buffers of several workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.weights import ServedWeights, averaged
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.stage import StageCopy
from jellybean.training.stages.updates import GROUP, UpdateSettings, WeightUpdates


class _Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))


def _served(gradients: int) -> tuple[_Two, ServedWeights]:
    module = _Two()
    held = {(0, 0): StageCopy(module)}

    def decaying(own):
        return torch.optim.SGD([{"params": own.values(), GROUP: 0}], lr=0.1, weight_decay=0.5)

    updates = WeightUpdates(held, decaying, ProcessGroups(), UpdateSettings(True))
    return module, ServedWeights(SimpleNamespace(held=held, updates=updates), gradients)


def test_a_weight_that_no_work_item_has_a_gradient_of_stays():
    module, weights = _served(2)
    assert not weights.add(1, {"used": torch.ones(3, 2)}, [{"lr": 0.1}])
    assert weights.add(0, {"used": torch.ones(3, 2)}, [{"lr": 0.1}])
    assert torch.equal(module.spare.data, torch.ones(2))
    assert torch.allclose(module.used.data, torch.full((3, 2), 1 - 0.1 * (2 + 0.5)))


def test_a_weight_that_one_work_item_has_a_gradient_of_is_stepped():
    module, weights = _served(2)
    weights.add(0, {"used": torch.ones(3, 2)}, [{"lr": 0.1}])
    weights.add(1, {"spare": torch.ones(2)}, [{"lr": 0.1}])
    assert torch.allclose(module.spare.data, torch.full((2,), 1 - 0.1 * (1 + 0.5)))


def test_gradients_on_their_way_are_dense_and_name_what_is_missing():
    flat = FlatTensors({"used": torch.ones(3, 2), "spare": torch.ones(2)})
    sparse = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 2), (3, 2), check_invariants=True)
    flat.put({"used": sparse})
    sent = flat.without(["spare"])
    assert list(sent) == ["used"]
    assert torch.equal(sent["used"], sparse.to_dense())


def test_buffers_of_workers_are_averaged_and_counters_add_up():
    before = {"mean": torch.zeros(1), "batches": torch.tensor(10)}
    workers = [
        {"mean": torch.ones(1), "batches": torch.tensor(13)},
        {"mean": torch.full((1,), 3.0), "batches": torch.tensor(12)},
    ]
    result = averaged(workers, before)
    assert float(result["mean"]) == 2
    assert int(result["batches"]) == 15
