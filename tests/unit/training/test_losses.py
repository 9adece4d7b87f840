"""Padded rows have the same loss in micro-batches as whole: targets of -100 do not count. Labels as targets."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.errors import JellyBeanError
from jellybean.training import IterationFeed, ReadPlan
from jellybean.training.data.rows import MemoryRows, MicrobatchIndex
from jellybean.training.data.rules import RowRules
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.losses import (
    LabelTargets,
    class_dimension,
    class_scores,
    cross_entropy,
    find_label_targets,
    model_loss,
)
from jellybean.training.metrics import correct
from jellybean.training.samples import IGNORED, Samples, read_samples

nn = torch.nn
WORDS, LENGTH, ROWS = 11, 6, 10


class Language(nn.Module):
    """Scores of tokens and their loss, of the labels as they are or shifted by one."""

    def __init__(self, *, shift: bool) -> None:
        super().__init__()
        self.words, self.scores, self.shift = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), shift

    def forward(self, tokens, labels=None):
        logits = self.scores(self.words(tokens))
        if labels is None:
            return {"logits": logits}
        scores, wanted = (logits[:, :-1].float(), labels[:, 1:]) if self.shift else (logits.float(), labels)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        return {"loss": loss, "logits": logits}


def _rows(*, with_targets: bool) -> Samples:
    maker = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=maker)
    valid = torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (ROWS, 1), generator=maker)
    labels = tokens.masked_fill(~valid, IGNORED)
    given = ({"tokens": tokens}, labels) if with_targets else {"tokens": tokens, "labels": labels}
    return read_samples(given, "nets.py:data", "train", targets=with_targets)


@pytest.mark.parametrize(("shift", "with_targets"), [(True, False), (False, False), (False, True)])
def test_padded_rows_in_micro_batches(shift, with_targets):
    torch.manual_seed(0)
    module, samples = Language(shift=shift), _rows(with_targets=with_targets)
    loss = cross_entropy if with_targets else model_loss

    def run(rows: torch.Tensor) -> torch.Tensor:
        arguments = samples.arguments(rows)
        outputs = arguments.form.call(module, arguments.tensors)
        return loss(class_scores(outputs) if with_targets else outputs, samples.target(rows))

    example = samples.arguments(torch.arange(4))
    outputs = example.form.call(module, example.tensors)
    labels = find_label_targets(loss, example, outputs)
    assert labels == (None if with_targets else LabelTargets(shift))
    rows = MemoryRows(samples, seed=0).ruled(RowRules("net", labels, counts="targets"))
    plan = ReadPlan(MicrobatchSampler(ROWS, ROWS, 3, 1))
    feed, order = IterationFeed(rows.read(plan), 0, torch.device("cpu"), 0, 0, 0), rows.order(0)
    parts = sum(run(order[list(plan.part(MicrobatchIndex(0, number)))]) * feed.factor(number) for number in range(3))
    assert torch.allclose(parts, run(torch.arange(ROWS)))


def test_a_loss_that_is_no_mean_over_labels_gives_metrics_no_targets():
    class Smooth(Language):
        def forward(self, tokens, labels=None):
            found = super().forward(tokens, labels)
            return {**found, "loss": found["loss"] * 1.5}

    module, example = Smooth(shift=False), _rows(with_targets=False).arguments(torch.arange(4))
    assert find_label_targets(model_loss, example, example.form.call(module, example.tensors)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shift", [True, False])
def test_labels_of_a_model_that_gives_all_words_the_same_score(shift, dtype):
    """Its loss is the same for all labels, as that of a language model before its first update nearly is."""
    torch.manual_seed(0)
    module, example = Language(shift=shift).to(dtype), _rows(with_targets=False).arguments(torch.arange(4))
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(1e-4)
    outputs = example.form.call(module, example.tensors)
    assert find_label_targets(model_loss, example, outputs) == LabelTargets(shift)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [True, False])
def test_labels_of_a_model_in_16_bits(shift, dtype):
    """It computes its loss in float32, as those of transformers do."""
    for seed in range(5):
        torch.manual_seed(seed)
        module, example = Language(shift=shift).to(dtype), _rows(with_targets=False).arguments(torch.arange(4))
        outputs = example.form.call(module, example.tensors)
        assert outputs["logits"].dtype == dtype
        assert find_label_targets(model_loss, example, outputs) == LabelTargets(shift)


def test_cross_entropy_of_short_scores_is_computed_in_float32():
    """Of classes and of probabilities; scores in double precision stay."""
    scores, targets = torch.randn(64, 9, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.arange(64) % 9
    for given in (targets, nn.functional.one_hot(targets, 9).bfloat16()):
        assert cross_entropy(scores, given).dtype == torch.float32
        assert cross_entropy(scores, given) == pytest.approx(float(cross_entropy(scores.float(), targets)), rel=1e-6)
    assert cross_entropy(scores.double(), targets).dtype == torch.float64


@pytest.mark.parametrize("shift", [True, False])
def test_labels_are_the_targets_of_the_scores(shift):
    """Their mean cross-entropy is the model's own loss; the last score of a shifted row has no target."""
    torch.manual_seed(0)
    module, samples = Language(shift=shift), _rows(with_targets=False)
    outputs = samples.inputs.form.call(module, samples.inputs.tensors)
    labelled = RowRules("net", LabelTargets(shift), counts="targets").apply(samples)
    targets = labelled.target(slice(None))
    tokens, labels = samples.inputs.tensors
    assert torch.allclose(cross_entropy(outputs, targets), outputs["loss"])
    valid = (labels[:, 1:] if shift else labels) != IGNORED
    assert labelled.weights.tolist() == valid.sum(1).tolist()
    right = (class_scores(outputs).argmax(2)[:, : LENGTH - shift] == tokens[:, int(shift) :]) & valid
    assert correct(class_scores(outputs), targets) == (int(right.sum()), int(valid.sum()))
    with pytest.raises(JellyBeanError, match="which has no scores"):
        find_label_targets(model_loss, samples.inputs, {"loss": outputs["loss"]})


def test_class_scores_of_tokens_and_pictures():
    targets = torch.tensor([[0, 1, IGNORED], [2, IGNORED, 1]])
    scores = torch.randn(2, 3, 5)
    expected = nn.functional.cross_entropy(scores.movedim(2, 1), targets, ignore_index=IGNORED)
    assert torch.allclose(cross_entropy(scores, targets), expected)
    assert torch.allclose(cross_entropy({"logits": scores.movedim(2, 1)}, targets), expected)
    assert class_dimension(torch.randn(2, 4), torch.tensor([0, 1])) == 1
    assert float(cross_entropy(scores, torch.full((2, 3), IGNORED))) == 0.0
    with pytest.raises(JellyBeanError, match=r"\[2, 3, 5\] and targets of shape \[3\] do not fit"):
        cross_entropy(scores, torch.zeros(3, dtype=torch.long))


def test_accuracy_counts_valid_tokens():
    targets = torch.tensor([[0, 1, IGNORED], [2, IGNORED, 1]])
    scores = nn.functional.one_hot(targets.clamp(min=0), 4).float()
    assert correct(scores, targets) == (4, 4)
    assert correct(1.0 - scores, targets) == (0, 4)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (([[1.0], [2.0]], [0, 1]), ("input_0",)),
        (((torch.ones(2), torch.ones(2, 3)), [0, 1]), ("input_0", "input_1")),
        (({"x": torch.ones(2), "scale": 0.5, "kind": "a", "mask": None}, [0, 1]), ("x",)),
    ],
)
def test_inputs_as_arrays_tuples_and_dicts(given, names):
    samples = read_samples(given, "nets.py:data", "train", targets=True)
    assert samples.inputs.names == names
    assert len(samples) == 2
    assert samples.target(torch.tensor([1])).tolist() == [1]
    if "x" in names:
        assert samples.inputs.form.nest([7])[1] == {"x": 7, "scale": 0.5, "kind": "a", "mask": None}


def test_a_model_without_a_loss():
    with pytest.raises(JellyBeanError, match="give it labels, or name a loss"):
        model_loss({"logits": torch.ones(2)}, None)


def test_dropout_depends_on_the_seed():
    reader = MemoryRows(_rows(with_targets=True)).read(ReadPlan(MicrobatchSampler(ROWS, ROWS, 2, 1)))
    feeds = [IterationFeed(reader, 0, torch.device("cpu"), 0, 0, seed) for seed in (0, 1, 0)]
    assert feeds[0].seed(0, 0) != feeds[1].seed(0, 0)
    assert feeds[0].seed(0, 0) == feeds[2].seed(0, 0)
