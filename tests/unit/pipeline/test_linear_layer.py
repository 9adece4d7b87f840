"""Tensor against data parallelism of a linear layer: published costs, and the batch where the choice turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.pipeline import LinearComparison
from jellybean_solver import SolverError
from jellybean_solver.pipeline import LinearLayer, LinearStrategy, data_from_batch, least_sending, sent_values

PARTITION, REDUCE, DATA = LinearStrategy


def test_published_costs_on_two_devices() -> None:
    layer, batch = LinearLayer(inputs=300, outputs=70), 11
    partition = sent_values(layer, PARTITION, 2, batch)
    assert (partition.forward, partition.backward) == (batch * 70 / 2, batch * 300)
    reduce = sent_values(layer, REDUCE, 2, batch)
    assert (reduce.forward, reduce.backward) == (batch * 70, batch * 300 / 2)
    data = sent_values(layer, DATA, 2, batch)
    assert (data.forward, data.backward) == (0, 70 * 300)


@pytest.mark.parametrize("strategy", LinearStrategy)
def test_more_devices_send_the_share_of_a_ring(strategy: LinearStrategy) -> None:
    layer = LinearLayer(48, 80)
    two = sent_values(layer, strategy, 2, 16).total
    for devices in (3, 4, 8):
        assert sent_values(layer, strategy, devices, 16).total == pytest.approx(two * 2 * (devices - 1) / devices)


def test_4096_by_4096_turns_at_2731() -> None:
    layer = LinearLayer(4096, 4096)
    assert data_from_batch(layer) == 2731
    assert least_sending(layer, 2730) is PARTITION
    assert least_sending(layer, 2731) is DATA


@pytest.mark.parametrize("devices", [2, 3, 7])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 3), (30, 30), (8, 40), (40, 8), (64, 63), (6, 4)])
def test_the_turn_is_where_the_counts_cross(inputs: int, outputs: int, devices: int) -> None:
    """Also where both send equally much, at (3, 3): the division is kept."""
    layer = LinearLayer(inputs, outputs)
    turn = data_from_batch(layer)
    for batch in range(1, 2 * turn + 2):
        sent = {strategy: sent_values(layer, strategy, devices, batch).total for strategy in LinearStrategy}
        divided = min(sent[PARTITION], sent[REDUCE])
        assert (sent[DATA] < divided - 1e-9) == (batch >= turn)
        best = least_sending(layer, batch)
        assert sent[best] == pytest.approx(min(sent.values()))
        assert (best is DATA) == (batch >= turn)


def test_the_cheaper_division_follows_the_shape() -> None:
    assert least_sending(LinearLayer(inputs=10, outputs=40), 1) is PARTITION
    assert least_sending(LinearLayer(inputs=40, outputs=10), 1) is REDUCE


def test_a_layer_without_inputs_is_refused() -> None:
    with pytest.raises(SolverError, match="must be positive"):
        LinearLayer(0, 1)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (4096, 4096), (10**9, 10**9)])
def test_batches_shown_include_the_turn_and_both_sides(inputs: int, outputs: int) -> None:
    comparison = LinearComparison(LinearLayer(inputs, outputs), 2, batch=5)
    turn = data_from_batch(comparison.layer)
    assert {5, turn} <= set(comparison.batches)
    assert comparison.batches == sorted(set(comparison.batches))
    assert max(comparison.batches) > turn
    assert len(comparison.batches) < 14


@pytest.mark.slow
def test_a_picture_marks_the_turn(tmp_path: Path) -> None:
    picture = tmp_path / "layer.svg"
    LinearComparison(LinearLayer(4096, 4096), 2, 256).save_plot(picture)
    text = picture.read_text(encoding="utf-8")
    for label in (">2,731<", ">batch 256<", ">data parallel<", ">partition of the output<"):
        assert label in text
