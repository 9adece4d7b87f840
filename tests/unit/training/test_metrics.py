"""Metrics add up over micro-batches and ranks to what the whole test would give; when they make a run stop."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import EarlyStopSpec, TrainingDocument
from jellybean.errors import JellyBeanError
from jellybean.training.early_stop import epoch_to_restore, reason_to_stop, why_undefined
from jellybean.training.losses import cross_entropy
from jellybean.training.metrics import check_metrics, load_metrics

NETS = """\
import torch

def error(outputs, targets):
    return (outputs.argmax(1) != targets).double().mean()

class F1:
    def __init__(self):
        self.hits, self.named, self.wanted = 0, 0, 0

    def add(self, outputs, targets):
        chosen = outputs.argmax(1) == 1
        self.hits += int((chosen & (targets == 1)).sum())
        self.named += int(chosen.sum())
        self.wanted += int((targets == 1).sum())

    def totals(self):
        return [self.hits, self.named, self.wanted]

    def value(self, totals):
        hits, named, wanted = totals
        return 2 * hits / (named + wanted) if named + wanted else None

def text(outputs, targets):
    return "good"

def broken(outputs, targets):
    return 1 / 0

class Ratio(F1):
    def value(self, totals):
        return totals[0] / 0

class Listed(F1):
    def value(self, totals):
        return []

class InTorch(F1):
    def value(self, totals):
        return torch.nn.functional.relu("not a tensor")

class NoTotals:
    def add(self, outputs, targets): ...

class Growing(F1):
    def totals(self):
        return [1.0] * self.named
"""


def _metrics(folder: Any, *names: str) -> Any:
    (folder / "nets.py").write_text(NETS, encoding="utf-8")
    document = TrainingDocument(
        kind="Training",
        model="nets.py:net",
        data="nets.py:data",
        epochs=1,
        batch=4,
        optimizer={"name": "sgd", "lr": 0.1},
        metrics=names,
    )
    return load_metrics(document, folder, cross_entropy)


def _rows() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 2, generator=generator), torch.randint(0, 2, (20,), generator=generator)


def test_sums_of_two_ranks_are_those_of_the_whole(tmp_path):
    outputs, targets = _rows()
    made = _metrics(tmp_path, "accuracy", "perplexity", "nets.py:error", "nets.py:F1")
    assert list(made) == ["accuracy", "perplexity", "error", "F1"]
    found = {}
    for name, make in made.items():
        ranks = [make(), make()]
        for number, (part, own) in enumerate(zip(outputs.split(6), targets.split(6), strict=True)):
            ranks[number % 2].add(part, own, float(len(part)))
        totals = [sum(values) for values in zip(*(rank.totals() for rank in ranks), strict=True)]
        found[name] = make().value(totals)
    chosen = outputs.argmax(1)
    right = float((chosen == targets).double().mean())
    hits, both = float((chosen * targets).sum()), float((chosen + targets).sum())
    assert found["accuracy"] == pytest.approx(100 * right)
    assert found["error"] == pytest.approx(1 - right)
    assert found["perplexity"] == pytest.approx(float(cross_entropy(outputs, targets).exp()))
    assert found["F1"] == pytest.approx(2 * hits / both)


def test_accuracy_is_not_defined_where_targets_are_no_classes(tmp_path):
    """As with a loss of one's own: several labels a row, or outputs without scores."""
    make = _metrics(tmp_path, "accuracy")["accuracy"]
    several, boxes = (torch.randn(4, 5), torch.ones(4, 5).long()), ({"boxes": torch.randn(4)}, torch.zeros(4).long())
    for outputs, targets in (several, boxes):
        measure = make()
        measure.add(outputs, targets, 4.0)
        assert measure.value(measure.totals()) is None


def test_perplexity_is_of_valid_tokens(tmp_path):
    scores = torch.randn(4, 5, 7)
    targets = torch.randint(0, 7, (4, 5)).masked_fill(torch.rand(4, 5) < 0.5, -100)
    measure = _metrics(tmp_path, "perplexity")["perplexity"]()
    for row, own in zip(scores.split(1), targets.split(1), strict=True):
        measure.add(row, own, float((own != -100).sum()))
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).exp()
    assert measure.value(measure.totals()) == pytest.approx(float(expected), rel=1e-5)
    measure.add(torch.tensor([[1e4, 0.0]]), torch.tensor([1]), 1e9)
    assert measure.value(measure.totals()) == float("inf")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nets.py:text", "the metric nets.py:text gives str; it must give a number"),
        ("nets.py:broken", r"the metric nets.py:broken failed at .*nets.py:\d+: division by zero"),
        ("nets.py:Ratio", r"the metric nets.py:Ratio failed at .*nets.py:\d+: .*division by zero"),
        ("nets.py:InTorch", r"the metric nets.py:InTorch failed at [^ ]*/nets.py:\d+: relu"),
        ("nets.py:Listed", "the metric nets.py:Listed gives list; it must give a number"),
        ("nets.py:NoTotals", r"is a class without totals\(\): it needs add"),
        ("nets.py:Growing", "has 0 totals before it has seen rows and"),
        ("nets.py:f1", "nets.py has no function 'f1'"),
    ],
)
def test_mistakes(tmp_path, name, told):
    with pytest.raises(JellyBeanError, match=told):
        check_metrics(_metrics(tmp_path, name), *_rows())


def _losses(*values: float | None) -> list[dict[str, float | None]]:
    return [{} if value is None else {"loss": value, "accuracy": 10 * value} for value in values]


@pytest.mark.parametrize(
    ("spec", "history", "stops"),
    [
        ({}, [3.0, 2.0, 1.0, 1.5], False),
        ({}, [3.0, 2.0, 1.0, 1.5, 1.2], True),
        ({}, [3.0, float("nan"), float("nan")], True),
        ({}, [3.0, 2.9, 2.8, 2.7], False),
        ({"min_delta": 0.5}, [3.0, 2.9, 2.8], True),
        ({"metric": "accuracy"}, [1.0, 3.0, 2.0, 2.0], True),
        ({"metric": "accuracy"}, [3.0, 1.0, 4.0], False),
        ({"metric": "accuracy", "mode": "min"}, [1.0, 3.0, 4.0], True),
        ({}, [None, None, None, 5.0], False),
        ({}, [], False),
        ({}, [3.0, 2.0, None], False),
        ({}, [3.0, None, None], True),
        ({}, [float("nan"), 3.0, 2.0], False),
        ({}, [float("nan"), 3.0, 4.0, 5.0], True),
        ({"metric": "accuracy"}, [float("nan"), 3.0, 4.0], False),
        ({}, [float("inf"), 3.0, 2.0], False),
    ],
)
def test_a_run_stops_when_a_metric_does_not_improve(spec, history, stops):
    found = reason_to_stop(EarlyStopSpec(**{"metric": "loss", "patience": 2, **spec}), _losses(*history))
    assert bool(found) == stops


def test_the_reason_names_the_best_epoch():
    found = reason_to_stop(EarlyStopSpec(metric="loss", patience=2), _losses(3.0, 1.0, 1.5, 1.2))
    assert found == "stopped after epoch 4: loss has not improved for 2 epochs; the best, 1, was that of epoch 2"


@pytest.mark.parametrize(
    ("spec", "history", "epoch"),
    [
        ({}, [3.0, 1.0, 1.5, 1.2], 2),
        ({}, [3.0, 2.0, 1.0], 3),
        ({}, [None, 2.0, float("nan")], 2),
        ({}, [1.0, 1.0], 1),
        ({"min_delta": 0.5}, [3.0, 2.9, 2.8], 1),
        ({"metric": "accuracy"}, [1.0, 3.0, 2.0], 2),
        ({"restore": "last"}, [3.0, 1.0, 1.5], None),
        ({}, [None], None),
        ({}, [], None),
    ],
)
def test_the_epoch_whose_weights_the_run_ends_with(spec, history, epoch):
    spec = EarlyStopSpec(**{"metric": "loss", "patience": 2, **spec})
    assert epoch_to_restore(spec, _losses(*history)) == epoch
    assert epoch_to_restore(None, _losses(*history)) is None


def test_epochs_without_a_checkpoint_do_not_compete():
    spec, history = EarlyStopSpec(metric="loss", patience=2), _losses(1.0, 3.0, 2.0, 2.5)
    assert epoch_to_restore(spec, history, lost=[1]) == 3
    assert epoch_to_restore(spec, history, lost=[1, 2, 3, 4]) is None


def test_a_metric_without_any_value_cannot_end_a_run():
    """An epoch of a resumed run may lack it: it was measured later, or not recorded by version 1."""
    spec = EarlyStopSpec(metric="perplexity", patience=2)
    assert reason_to_stop(spec, [{}] * 3) == reason_to_stop(spec, _losses(3.0, 2.0, 1.0)) == ""
    assert "perplexity is not defined for this data" in why_undefined(spec, _losses(3.0))
    assert why_undefined(spec, [{"perplexity": float("nan")}])
    assert not why_undefined(spec, [{}, {"perplexity": 2.0}, {"perplexity": None}])
