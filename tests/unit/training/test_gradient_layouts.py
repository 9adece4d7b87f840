"""Gradients that are absent, sparse or dense, before and after they are summed as dense tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.stages.all_reduce import ProcessGroups, clip_gradients, global_norm
from jellybean.training.stages.buffer_copies import merged
from jellybean.training.stages.gradient_layouts import Layout, LocalLayouts, added, dense, layout_of
from jellybean.training.stages.gradient_sums import TorchSums
from jellybean.training.stages.stage import StageCopy, StageInputs
from jellybean.training.stages.updates import UpdateSettings, WeightUpdates

CPU = torch.device("cpu")


def _sparse(*rows: int) -> torch.Tensor:
    return torch.sparse_coo_tensor([list(rows)], torch.ones(len(rows), 2), (5, 2), check_invariants=True)


def test_the_layout_of_a_gradient():
    by_numbers = torch.eye(3).to_sparse()
    assert layout_of(None) is Layout.ABSENT
    assert layout_of(_sparse(1)) is Layout.ROWS
    assert layout_of(torch.ones(2)) is layout_of(by_numbers) is Layout.DENSE
    assert torch.equal(dense(by_numbers), torch.eye(3))


def test_sums_have_the_rows_of_the_gradients_and_no_others():
    gradients = {"rows": _sparse(3, 1, 3), "dense": torch.ones(2)}
    weights = {"spare": torch.ones(4), "dense": torch.ones(2), "rows": torch.ones(5, 2)}
    layouts = LocalLayouts(gradients, weights)
    sums = {name: dense(gradients[name]) if name in gradients else torch.zeros_like(w) for name, w in weights.items()}
    restored = layouts.restore(sums, None, CPU)
    assert sorted(restored) == ["dense", "rows"]
    assert restored["rows"].coalesce().indices().tolist() == [[1, 3]]
    assert torch.equal(dense(restored["rows"]), dense(gradients["rows"]))


@pytest.mark.parametrize("one", [_sparse(1), torch.ones(5, 2)])
@pytest.mark.parametrize("other", [_sparse(1, 4), torch.ones(5, 2)])
def test_gradients_of_any_layout_add_up(one, other):
    expected = dense(one) + dense(other)
    assert torch.equal(dense(added(one.clone(), other)), expected)


def test_the_norm_of_sparse_gradients_is_that_of_dense_ones():
    sparse = {"rows": _sparse(1, 1, 2), "complex": torch.full((2,), 3 + 4j)}
    whole = {name: dense(value) for name, value in sparse.items()}
    norm = global_norm([sparse], {}, None, CPU)
    assert float(norm) == pytest.approx(float(global_norm([whole], {}, None, CPU))) == pytest.approx(60.0**0.5)
    clip_gradients([sparse], norm, 1.0)
    assert float(global_norm([sparse], {}, None, CPU)) == pytest.approx(1.0, rel=1e-5)


class _Tie(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(5, 2))
        self.spare = torch.nn.Parameter(torch.ones(3))


def _updates(gradients: dict[str, torch.Tensor]) -> tuple[_Tie, WeightUpdates, dict[tuple[int, int], StageCopy]]:
    """Two stages of one rank that share a weight, with these gradients of it in the first one."""
    module = _Tie()
    held = {(number, 0): StageCopy(module) for number in range(2)}
    held[0, 0].gradient = dict(gradients)
    tied = {"weight": {0: "weight", 1: "weight"}}

    def decaying(own):
        return torch.optim.SGD(own.values(), lr=0.1, weight_decay=0.5)

    return module, WeightUpdates(held, decaying, ProcessGroups(), UpdateSettings(True, tied)), held


def test_a_tied_weight_without_a_gradient_does_not_decay():
    module, updates, held = _updates({})
    updates.begin_iteration([])
    updates.prepare(0, held[0, 0])
    assert held[0, 0].gradient == held[1, 0].gradient == {}
    assert torch.equal(module.weight.data, torch.ones(5, 2))


def test_a_tied_weight_keeps_the_layout_of_its_gradient():
    _, updates, held = _updates({"weight": _sparse(2)})
    updates.begin_iteration([])
    updates.prepare(0, held[0, 0])
    assert held[1, 0].gradient["weight"].is_sparse
    assert held[0, 0].gradient["weight"].coalesce().indices().tolist() == [[2]]


def test_a_sum_of_several_types_rounds_none(monkeypatch):
    def doubled(values, group=None, async_op=False):
        values.mul_(2)

        class Work:
            def wait(self):
                return None

        return Work()

    monkeypatch.setattr(torch.distributed, "all_reduce", doubled)
    gradients = {
        "a": torch.full((2,), 1 / 3, dtype=torch.float64),
        "b": torch.full((2,), 1 + 2j, dtype=torch.complex64),
        "c": torch.full((1,), 0.5),
    }
    expected = {name: 2 * value for name, value in gradients.items()}
    pending = TorchSums(ProcessGroups(copies={0: object()})).start(0, gradients)
    pending.finish(gradients)
    assert all(torch.equal(gradients[name], value) for name, value in expected.items())


def test_complex_values_from_another_stage_take_gradients():
    received = StageInputs(differentiable=(True, True, True)).received(
        (torch.ones(2, dtype=torch.complex64), torch.ones(2), torch.ones(2, dtype=torch.int64))
    )
    assert [value.requires_grad for value in received] == [True, True, False]


@pytest.mark.parametrize(
    ("before", "copies", "expected"),
    [
        (torch.tensor(3), [torch.tensor(5), torch.tensor(7)], torch.tensor(9)),
        (torch.tensor([True, False]), [torch.tensor([True, True]), torch.tensor([True, False])], [True, True]),
        (torch.tensor([1.0]), [torch.tensor([2.0]), torch.tensor([4.0])], [3.0]),
        (torch.tensor([1j]), [torch.tensor([2j]), torch.tensor([4j])], [3j]),
        (torch.tensor([250], dtype=torch.uint8), [torch.tensor([252], dtype=torch.uint8)] * 2, [254]),
    ],
)
def test_one_buffer_of_those_of_copies(before, copies, expected):
    result = merged(before, copies)
    assert result.dtype == before.dtype
    assert torch.equal(result, torch.as_tensor(expected, dtype=before.dtype))
