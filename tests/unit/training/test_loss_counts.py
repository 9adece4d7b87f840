"""What a loss of one's own counts: found by splitting rows, as declared, or refused where micro-batches change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.nn import functional

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.loading import TrainingData
from jellybean.training.data.rows import MemoryRows, MicrobatchIndex, ReadPlan
from jellybean.training.data.rules import RowRules
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.errors import TrainingError
from jellybean.training.loss_trial import JudgedLoss, LossTrial
from jellybean.training.losses import model_loss
from jellybean.training.samples import Samples

ROWS = 8
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.0])


class Words(nn.Module):
    """Scores of 5 classes at each of 6 places; `own`: with its loss, of labels and outputs.

    `size`: of the scores. Small ones give all classes nearly the same score, as before the first update.
    """

    def __init__(self, own: Callable[[Any, Any], Any] | None = None, size: float = 1.0) -> None:
        super().__init__()
        self.words, self.own = nn.Embedding(9, 5), own
        with torch.no_grad():
            self.words.weight.mul_(size)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        scores = torch.tanh(self.words(ids))
        return scores if self.own is None else {"loss": self.own(scores, labels), "logits": scores}


def judged(
    loss: Callable[[Any, Any], Any],
    samples: Samples,
    module: nn.Module | None = None,
    count: Callable[[Any], Any] | None = None,
    *,
    spec: Any = "nets.py:loss",
    **document: Any,
) -> JudgedLoss:
    """The loss of these rows in four micro-batches, unless the document says another number. `spec`: `loss` of it."""
    torch.manual_seed(3)
    values = {"microbatches": 4, "loss": spec, **document}
    training = TrainingDocument.model_validate(
        {
            "kind": "Training",
            "model": "nets.py:net",
            "data": "nets.py:data",
            "epochs": 1,
            "batch": ROWS,
            "optimizer": {"name": "sgd", "lr": 0.1},
            **values,
        }
    )
    data = TrainingData(MemoryRows(samples, seed=0), MemoryRows(samples), "nets.py:data")
    return LossTrial(module or nn.Linear(3, 2), data, loss, count).judge(training, RowRules("net"))


def numbers(shape: tuple[int, ...] = (2,)) -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 3, generator=generator)
    return Samples(CallArguments.of([inputs]), CallArguments.of([torch.randn(ROWS, *shape, generator=generator)]))


def classes() -> Samples:
    return Samples(numbers().inputs, CallArguments.of([torch.tensor([0, 1, 0, 1, 1, 0, 1, 1])]))


def tokens(*, as_labels: bool = False) -> Samples:
    """Rows of 0 to 6 valid targets."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 9, (ROWS, 6), generator=generator)
    valid = torch.arange(6) < torch.tensor([0, 0, 1, 2, 2, 5, 6, 6])[:, None]
    labels = (ids % 5).masked_fill(~valid, -100)
    if as_labels:
        return Samples(CallArguments.of((), {"ids": ids, "labels": labels}), None)
    return Samples(CallArguments.of([ids]), CallArguments.of([labels]))


def over_tokens(outputs: torch.Tensor, targets: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100, **options)


def over_rows(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over rows of the means over a row's valid targets."""
    losses = functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")
    return (losses.sum(1) / (targets != -100).sum(1).clamp(min=1)).mean()


def in_batch_negatives(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def triplets(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Batch-hard mining: the farthest row of the class, and the nearest of another."""
    distances, same = torch.cdist(outputs, outputs), targets[:, None] == targets
    farthest = (distances * same).max(1).values
    nearest = distances.masked_fill(same, 99.0).min(1).values
    return functional.relu(farthest - nearest + 1.0).mean()


def small_regulariser(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, targets) + 1e-6 * outputs.var(0).sum()


def hidden_in_gradients(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A value of 0, with gradients of the mean over the batch."""
    mean = outputs.mean(0)
    return functional.mse_loss(outputs, targets) + (mean.square() - mean.square().detach()).sum()


class ByTime(nn.Module):
    """Log-probabilities of 4 symbols at 8 times, as many as rows, with the time first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 32)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs).reshape(-1, 8, 4).log_softmax(-1).transpose(0, 1)


def alignment(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    times, rows = outputs.shape[:2]
    lengths = (targets > 0).sum(1)
    return functional.ctc_loss(outputs, targets, torch.full((rows,), times), lengths)


def in_pairs(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of rows that come in pairs; it fails for an odd number."""
    outputs, targets = outputs.reshape(-1, 2, 2), targets.reshape(-1, 2, 2)
    return (outputs - targets).square().mean()


@pytest.mark.parametrize(
    ("loss", "samples", "counts"),
    [
        (functional.l1_loss, numbers(), "rows"),
        (in_pairs, numbers(), "rows"),
        (over_rows, tokens(), "rows"),
        (over_tokens, tokens(), "targets"),
        (lambda o, y: over_tokens(o, y, label_smoothing=0.2), tokens(), "targets"),
        (lambda o, y: over_tokens(o, y, reduction="sum"), tokens(), "sum"),
        (lambda o, y: functional.mse_loss(o, y, reduction="sum") / ROWS, numbers(), "sum"),
        (lambda o, y: functional.cross_entropy(o, y, weight=torch.tensor([1.0, 1.0])), classes(), "rows"),
    ],
)
def test_what_a_loss_counts(loss: Callable[[Any, Any], Any], samples: Samples, counts: str) -> None:
    module = Words() if samples.classes is not None and samples.classes.dim() > 1 else None
    assert judged(loss, samples, module).rules.counts == counts


@pytest.mark.parametrize(
    ("loss", "samples"),
    [
        (in_batch_negatives, numbers()),
        (triplets, classes()),
        (small_regulariser, numbers()),
        (hidden_in_gradients, numbers()),
        (lambda o, y: functional.mse_loss(o, y).sqrt(), numbers()),
        (lambda o, y: 1 - 2 * (o.sigmoid() * y).sum() / (o.sigmoid() + y).sum(), numbers()),
        (lambda o, y: functional.cross_entropy(o, y, weight=torch.tensor([1.0, 3.0])), classes()),
        (lambda o, y: over_tokens(o, y, weight=WEIGHTS.to(o.dtype)), tokens()),
        (lambda o, y: over_tokens(o, y) + 0.1 * o.square().mean(), tokens()),
        (lambda o, y: functional.mse_loss(o, y) if len(o) == ROWS else o.mean() * len(o), numbers()),
    ],
)
def test_a_loss_over_the_batch_is_refused_in_micro_batches(loss: Callable[[Any, Any], Any], samples: Samples) -> None:
    module = Words() if samples.classes is not None and samples.classes.dim() > 1 else None
    refusal = r"^loss: nets.py:loss is over the batch, .* over 8 rows, .* micro-batches.*microbatches: 1.*counts: "
    for microbatches, replicas in ((4, 1), (1, 2)):
        with pytest.raises(TrainingError, match=refusal):
            judged(loss, samples, module, microbatches=microbatches, replicas=replicas)
    alone = judged(loss, samples, module, microbatches=1)
    assert (alone.rules.counts, alone.warning) == ("batch", "")
    accepted = judged(loss, samples, module, spec={"function": "nets.py:loss", "counts": "rows"})
    assert accepted.rules.counts == "rows"
    assert "another loss in micro-batches" in accepted.warning


class Noisy(nn.Module):
    """Restores its inputs from what noise leaves of them, and computes the loss."""

    def __init__(self, noise: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(3, 3), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.layer(self.noise(x)), x)


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x * (torch.rand(len(x), 1) < 0.5),
        lambda x: x + torch.from_numpy(np.random.rand(*x.shape)).to(x),
    ],
)
def test_a_loss_of_random_numbers_is_to_be_declared(noise: Callable[[torch.Tensor], torch.Tensor]) -> None:
    samples = Samples(numbers().inputs, None)
    with pytest.raises(TrainingError, match=r"loss: model draws random numbers.*say it, loss: \{function: model, c"):
        judged(model_loss, samples, Noisy(noise), spec="model")
    declared = judged(model_loss, samples, Noisy(noise), spec={"function": "model", "counts": "rows"})
    assert (declared.rules.counts, declared.warning) == ("rows", "")


def test_a_loss_over_the_batch_is_tested_in_batches() -> None:
    judgement = judged(in_batch_negatives, numbers(), microbatches=1, batch=4)
    assert judgement.warning.endswith("the test loss is the mean over batches of 4 of the 8 test rows")


def test_a_function_says_what_counts_in_a_row() -> None:
    spec = {"function": "nets.py:loss", "counts": "nets.py:count"}

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, weight=WEIGHTS[:2].to(outputs.dtype))

    right = judged(loss, classes(), count=lambda targets: WEIGHTS[targets], spec=spec)
    assert (right.rules.counts, right.warning) == ("function", "")
    assert "another loss in micro-batches" in judged(loss, classes(), count=lambda t: t + 2, spec=spec).warning
    for wrong in (lambda t: 1.0, lambda t: t - 1, lambda t: t / 0, lambda t: t[:3], lambda t: t.missing):
        with pytest.raises(TrainingError, match=r"^loss\.counts: "):
            judged(loss, classes(), count=wrong, spec=spec)


def test_a_loss_with_a_state_is_refused() -> None:
    calls: list[float] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(1.0)
        return functional.mse_loss(outputs, targets) / len(calls)

    for microbatches in (1, 4):
        with pytest.raises(TrainingError, match=r"nets.py:loss: it gives .* and then .* keeps a state"):
            judged(loss, numbers(), microbatches=microbatches)


def test_outputs_need_no_row_per_sample() -> None:
    texts = torch.tensor([[1, 2, 3], [1, 2, 0], [3, 0, 0], [2, 2, 0]]).repeat(2, 1)
    samples = Samples(numbers().inputs, CallArguments.of([texts]))
    assert judged(alignment, samples, ByTime()).rules.counts == "rows"


def test_what_the_rows_do_not_show_is_said() -> None:
    nothing = judged(lambda outputs, targets: 0.0 * outputs.sum(), tokens(), Words())
    assert nothing.rules.counts == "rows"
    assert "0 over the 8 rows that were tried, with 0 to 6 valid targets" in nothing.warning
    undefined = judged(lambda outputs, targets: outputs.sum() / 0, tokens(), Words())
    assert "inf over the 8 rows" in undefined.warning or "nan over the 8 rows" in undefined.warning


def test_rows_of_another_number_of_targets_than_those_tried_are_refused() -> None:
    samples = tokens()
    labels = CallArguments.of([samples.inputs.tensors[0] % 5])
    judgement = judged(over_tokens, Samples(samples.inputs, labels), Words())
    assert judgement.rules.counts == "rows"
    judgement.rules.check(Samples(samples.inputs, labels), "train")
    with pytest.raises(TrainingError, match="a row in test has 0 valid targets, and all that were tried have 6"):
        judgement.rules.check(samples, "test")


def shifted(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)


def shifted_sums(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """In single precision, and not the mean over labels, but its double."""
    return 2.0 * over_tokens(scores[:, :-1].float(), labels[:, 1:])


def balanced(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """With a load-balancing term over the batch, as mixtures of experts have."""
    return over_tokens(scores, labels) + 1e-3 * scores.softmax(-1).mean((0, 1)).square().sum()


@pytest.mark.parametrize("size", [1.0, 1e-5])
@pytest.mark.parametrize(
    ("own", "counts"),
    [
        (over_rows, "rows"),
        (lambda s, y: over_tokens(s, y, label_smoothing=0.1), "targets"),
        (lambda s, y: over_tokens(s.float(), y), "targets"),
        (shifted, "targets"),
        (shifted_sums, "targets"),
    ],
)
def test_a_models_loss_is_judged_by_its_labels(own: Callable[[Any, Any], Any], counts: str, size: float) -> None:
    found = judged(model_loss, tokens(as_labels=True), Words(own, size), spec="model")
    assert found.rules.counts == counts
    assert (found.rules.labels is not None and found.rules.labels.shifted) is (own in (shifted, shifted_sums))
    assert ("8 rows with 0 to 6 valid targets" in found.warning) is (counts == "rows")


@pytest.mark.parametrize("size", [1.0, 0.2])
@pytest.mark.parametrize("own", [balanced, lambda s, y: balanced(s.float(), y)])
def test_a_models_loss_over_the_batch_is_refused(own: Callable[[Any, Any], Any], size: float) -> None:
    with pytest.raises(TrainingError, match="loss: model is over the batch"):
        judged(model_loss, tokens(as_labels=True), Words(own, size), spec="model")


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), weight=WEIGHTS.double())


def class_weights(targets: torch.Tensor) -> torch.Tensor:
    return (WEIGHTS.double()[targets.clamp(min=0)] * (targets != -100)).sum(1)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("loss", "rules"),
    [
        (over_rows, RowRules("net")),
        (over_tokens, RowRules("net", counts="targets")),
        (lambda o, y: over_tokens(o, y, reduction="sum"), RowRules("net", counts="sum")),
        (weighted, RowRules("net", counts="function", count=class_weights)),
    ],
)
def test_micro_batches_make_the_loss_of_their_batch(
    loss: Callable[[Any, Any], Any], rules: RowRules, replicas: int
) -> None:
    """Also of the last batch, which is smaller, and where a micro-batch has no valid target."""
    samples = tokens()
    scores = torch.randn(ROWS, 6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sampler = MicrobatchSampler(ROWS, 5, 2 // replicas, replicas)
    plans = [ReadPlan(sampler, replica=replica) for replica in range(replicas)]
    feeds = [
        IterationFeed(MemoryRows(samples).ruled(rules).read(plan), iteration, torch.device("cpu"), 0, plan.replica, 0)
        for plan in plans
        for iteration in range(2)
    ]
    sums = [0.0, 0.0]
    for feed in feeds:
        for microbatch in range(sampler.run):
            own = feed.reader.plan.part(MicrobatchIndex(feed.iteration, microbatch))  # type: ignore[attr-defined]
            if factor := feed.factor(microbatch):
                sums[feed.iteration] += factor * float(loss(scores[list(own)], samples.target(list(own))))
    batches = [range(5), range(5, ROWS)]
    assert sums == pytest.approx([float(loss(scores[list(own)], samples.target(list(own)))) for own in batches])


def violated_margins(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over the rows that violate a margin: with the outputs of an untrained model, all do."""
    losses = functional.relu((outputs * targets).sum(1) + 4.0)
    return losses.sum() / (losses > 0).sum().clamp(min=1)


def confident_rows(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over the rows of which the model is sure: here of all, as both classes have half of the score."""
    losses, sure = functional.cross_entropy(outputs, targets, reduction="none"), outputs.softmax(1).amax(1) < 0.95
    return (losses * sure).sum() / sure.sum().clamp(min=1)


def clipped_ratio(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean, but for batches of large outputs."""
    return functional.mse_loss(outputs, targets) / outputs.abs().mean().clamp(min=2.0)


@pytest.mark.parametrize(
    ("loss", "samples"), [(violated_margins, numbers()), (confident_rows, classes()), (clipped_ratio, numbers())]
)
def test_a_loss_is_split_on_other_outputs_too(loss: Callable[[Any, Any], Any], samples: Samples) -> None:
    with pytest.raises(TrainingError, match="is over the batch, no mean over its rows"):
        judged(loss, samples)


class Centres(nn.Module):
    """A loss with trained centres of classes. `frozen`: with constant ones."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(2, 2), requires_grad=not frozen)

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - self.centres[targets]).square().mean()


SCALE = torch.ones((), requires_grad=True)


def scaled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets) * SCALE


def test_weights_of_a_loss_are_told() -> None:
    said = "computes with weights of its own"
    assert f"{said} (of [2, 2]), which are not trained" in judged(Centres(), classes()).warning
    assert f"{said} (of []), which are not trained" in judged(scaled, classes()).warning
    assert said not in judged(Centres(frozen=True), classes()).warning
    module = nn.Linear(3, 2)

    def decayed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets) + 0.1 * module.weight.square().sum()

    assert said not in judged(decayed, classes(), module).warning
