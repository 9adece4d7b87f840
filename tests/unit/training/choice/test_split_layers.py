"""Candidates with split layers: their prices are those of the parts, of the group's sums, and of gradients of parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.pipeline import CallArguments, graph_facts, profile_traced, trace
from jellybean.training import Candidate, LinkSpeed, MeasuredCosts, TrainingError, enumerate_candidates
from jellybean.training.choice.decide import Predictor
from jellybean.training.choice.profiles import SizedProfiles
from jellybean.training.choice.report import slower_candidates
from jellybean.training.choice.search import Search
from jellybean.training.tensor_parallel.profile import LayerParts
from jellybean_solver.pipeline import COLLECTIVES

nn = torch.nn
LINK, WIDTH, ROWS = LinkSpeed(1e9, 1e-4), 32, 16


def _asked(**more: object) -> TrainingDocument:
    given = {"kind": "Training", "model": "a:b", "data": "a:b", "epochs": 1, "batch": 64, "parallel": "auto"}
    return TrainingDocument(**{**given, "optimizer": OptimizerSpec(name="sgd", lr=0.1), **more})


def _predictor(module: nn.Module, document: TrainingDocument) -> Predictor:
    """Layers of 1 ms forward and 2 ms backward, whatever the micro-batch."""
    inputs = (torch.randn(ROWS, WIDTH),)
    traced = trace(module, CallArguments.of(inputs))
    facts = graph_facts(traced, inputs)
    measured = profile_traced(traced, facts, inputs, runs=1)
    layers = tuple(replace(layer, forward_s=1e-3, backward_s=2e-3) for layer in measured.graph.layers)
    nodes = dict.fromkeys(measured.node_seconds, (1e-3, 2e-3))
    profile = replace(measured, graph=replace(measured.graph, layers=layers), node_seconds=nodes)
    sized = SizedProfiles((1, 64), (profile, replace(profile)))
    return Predictor(document, sized, 1.0, LINK, LayerParts(traced, facts, document))


def _pair() -> nn.Module:
    """Layers by columns, then by rows, of one size: a pair that needs one all-reduce each way."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def test_a_prediction_has_the_seconds_of_parts_and_of_the_sums():
    """Of three layers two are split. Forward, the second one's outputs are summed; backward, the first one's inputs
    are the model's and take no gradient, so nothing is."""
    made, document = _predictor(_pair(), _asked()), _asked()
    costs = made.choice(Candidate(1, 1, 4, "1f1b", tensor=2), MeasuredCosts(slowdown={2: 3.0})).costs
    sum_s = COLLECTIVES["ring"].seconds(4.0 * document.batch / 4 * WIDTH, 2, LINK.bytes_per_s, LINK.latency_s)
    assert costs.forward_s == pytest.approx((3 * (0.5e-3 + 0.5e-3 + 1e-3) + sum_s,))
    assert costs.backward_s == pytest.approx((3 * 2 * (0.5e-3 + 0.5e-3 + 1e-3),))


def test_memory_and_sums_of_replicas_are_those_of_parts():
    made, layer_bytes = _predictor(_pair(), _asked()), 4 * (WIDTH * WIDTH + WIDTH)
    rows_bytes = layer_bytes / 2 + 4 * (WIDTH * WIDTH / 2 + WIDTH)  # the bias of a layer by rows is whole
    split = Candidate(1, 2, 4, "1f1b", tensor=2)
    assert made.trained_bytes(split) == rows_bytes + layer_bytes
    assert made.trained_bytes(replace(split, tensor=1)) == 3 * layer_bytes
    choice, whole = (made.choice(one, MeasuredCosts()) for one in (split, replace(split, tensor=1)))
    expected_s = COLLECTIVES["ring"].seconds(rows_bytes + layer_bytes, 2, LINK.bytes_per_s, LINK.latency_s)
    assert choice.costs.wait_s == pytest.approx((expected_s,))
    assert choice.memory_bytes < whole.memory_bytes


@pytest.mark.parametrize(
    ("module", "settings", "why"),
    [
        (nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8)), {}, "no layer can be split over 2 processes"),
        (_pair(), {"optimizer": OptimizerSpec(name="Adafactor", lr=0.1)}, "Adafactor computes with whole matrices"),
    ],
)
def test_a_model_that_cannot_be_split_has_one_reason(module, settings, why):
    document = _asked(**settings)
    usable, rejected = _predictor(module, document).usable(enumerate_candidates(document, 4)[0])
    assert {one.tensor for one in usable} == {1}
    assert rejected["tensor"].startswith(why)
    given = _asked(tensor=2, **settings)
    with pytest.raises(TrainingError, match=why):
        _predictor(module, given).usable(enumerate_candidates(given, 4)[0])


def test_sizes_that_do_not_divide_the_layers_are_left_out():
    document = _asked()
    usable, rejected = _predictor(_pair(), document).usable(enumerate_candidates(document, 4)[0])
    assert {one.tensor for one in usable} == {1, 2, 4}
    assert "tensor" not in rejected


def test_the_reason_against_split_layers_is_their_best_time():
    alone, split = Candidate(1, 1, 4, "1f1b"), Candidate(1, 1, 4, "1f1b", tensor=2)
    times = {alone: 1e-3, split: 2e-3, replace(split, microbatches=8): 3e-3}
    made = Search(list(times), lambda one, _: times[one])
    assert slower_candidates(made, alone) == {"tensor": f"predicted 2.00 ms a batch in place of 1.00 ms ({split})"}
    assert slower_candidates(made, split) == {}


def test_split_layers_show_the_slowdown_only_where_nothing_else_does():
    """Their actions contain waits for the other processes of the group."""
    made, document = _predictor(_pair(), _asked()), _asked()
    candidate = Candidate(1, 1, 4, "1f1b", tensor=2)
    applied = candidate.applied(document)
    choice = made.choice(candidate, MeasuredCosts())
    shown = replace(choice.costs, forward_s=(8e-3,), backward_s=(16e-3,))
    schedule = choice.schedule(1, 4)
    known = MeasuredCosts(slowdown={1: 1.0})
    assert known.learned(applied, schedule, choice.costs, shown, 1e3).slowdown == {1: 1.0}
    assert MeasuredCosts().learned(applied, schedule, choice.costs, shown, 1e3).slowdown.keys() == {2}
