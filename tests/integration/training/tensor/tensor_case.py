"""Training with split layers on several ranks, and the same in plain torch on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from jellybean.documents import OptimizerSpec, TrainingDocument
from jellybean.documents.training.tensor import TensorSpec
from jellybean.pipeline import CallArguments, GraphFacts, TracedModule, graph_facts, profile_traced, trace
from jellybean.training import (
    Rank,
    SplitWeights,
    TensorGroup,
    choose_splits,
    lower,
    make_process_groups,
    set_up_run,
    trained_model,
)
from jellybean.training.tensor_parallel.profile import GroupSums, LayerParts, PartsProfile
from jellybean.training.train import train
from jellybean_solver.pipeline import make_schedule

ROWS, TESTS, TOKENS, WORDS, WIDTH, HEADS = 22, 6, 5, 24, 16, 4
EPOCHS = 3


class Layer(nn.Module):
    """A transformer layer: attention by a fused projection, an MLP with a gate."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.gate, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        query, key, value = (
            part.view(rows, tokens, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        weights = self.drop((query @ key.transpose(-2, -1) / 2).softmax(-1))
        x = x + self.back((weights @ value).transpose(1, 2).reshape(rows, tokens, width))
        y = self.norms[1](x)
        return x + self.down(self.drop(self.up(y) * torch.sigmoid(self.gate(y))))


class Words(nn.Module):
    """A language model whose head shares the embedding's weight."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=3)
        self.layers = nn.Sequential(*(Layer(dropout=dropout) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.embed(words))))


def words() -> nn.Module:
    return Words().double()


def single_words() -> nn.Module:
    return Words()


def words_with_dropout() -> nn.Module:
    return Words(dropout=0.2).double()


class FoldedAttention(nn.Module):
    """Attention whose heads are folded into the rows, as torch.bmm takes them, with dropout of its weights."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.back = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape

        def heads(value: torch.Tensor) -> torch.Tensor:
            split = value.view(rows, tokens, HEADS, width // HEADS).transpose(1, 2)
            return split.reshape(rows * HEADS, tokens, width // HEADS)

        scores = torch.bmm(heads(self.query(x)), heads(self.key(x)).transpose(1, 2)) / 2
        mixed = torch.bmm(self.drop(scores.softmax(-1)), heads(self.value(x)))
        joined = mixed.view(rows, HEADS, tokens, width // HEADS).transpose(1, 2).reshape(rows, tokens, width)
        return x + self.back(joined)


def folded_heads() -> nn.Module:
    return _folded(0.0)


def folded_heads_with_dropout() -> nn.Module:
    return _folded(0.2)


def _folded(dropout: float) -> nn.Module:
    layers = (FoldedAttention(dropout) for _ in range(2))
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS)).double()


def encoder() -> nn.Module:
    """torch's own layer, which only torch.export can follow."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), layer, nn.Linear(WIDTH, WORDS)).double()


def pictures_net() -> nn.Module:
    """Convolutions, then linear layers."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (1, TOKENS)),
        nn.Conv1d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(6, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * TOKENS, 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 4),
    ).double()


def sentences() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    every = torch.randint(0, WORDS, (ROWS + TESTS, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    inputs, targets = every[:, :-1], every[:, 1:]
    return {"train": (inputs[:ROWS], targets[:ROWS]), "test": (inputs[ROWS:], targets[ROWS:])}


def pictures() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows = torch.randn(ROWS + TESTS, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = rows[:, :4].argmax(1)
    return {"train": (rows[:ROWS], targets[:ROWS]), "test": (rows[ROWS:], targets[ROWS:])}


DATA = {pictures_net: pictures}


@dataclass(frozen=True)
class Split:
    """Train with split layers; returns losses by update, test losses by epoch, collectives, and on rank 0 the weights.

    `folder`: of checkpoints. `more`: further keys of the document; None leaves one out.
    """

    folder: str
    tensor: TensorSpec
    model: Any = words
    devices: int = 1
    replicas: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> TrainingDocument:
        settings: dict[str, Any] = {
            "epochs": EPOCHS,
            "batch": ROWS,
            "microbatches": 3,
            "optimizer": OptimizerSpec(name="sgd", lr=0.1, momentum=0.9),
            "schedule": "1f1b",
            **self.more,
        }
        return TrainingDocument(
            kind="Training",
            model=f"{__name__}:{self.model.__name__}",
            data=f"{__name__}:{DATA.get(self.model, sentences).__name__}",
            devices=self.devices,
            replicas=self.replicas,
            tensor=self.tensor,
            **{key: value for key, value in settings.items() if value is not None},
        )

    def __call__(self, number: int) -> dict[str, Any]:
        document = self.document
        spec = document.tensor
        rank = Rank(number, self.devices, torch.device("cpu"), tensor=spec.ways, by_rows=spec.by_rows)
        torch.manual_seed(document.seed)
        run = set_up_run(document, Path(), rank)
        shapes = {n: tuple(v.shape) for stage in run.held.values() for n, v in stage.versions.parameters.items()}
        epochs = train(run, run.document, Path(self.folder), lambda epoch: None, lambda text: None).epochs
        group = run.split.weights.group
        found = {
            "losses": [loss for epoch in epochs for loss in epoch.losses],
            "tests": [(epoch.test_loss, epoch.accuracy) for epoch in epochs],
            "calls": dict(group.calls),
            "layers": {name: split.value for name, split in run.split.layers.items()},
            "shapes": shapes,
            "note": run.note,
        }
        module = trained_model(run, run.document, Path())
        if module is not None:
            found["weights"] = {name: value.detach().clone() for name, value in module.state_dict().items()}
        return found


def in_plain_torch(case: Split) -> dict[str, Any]:
    """The same on one device: each update of all rows at once."""
    document = case.document
    torch.manual_seed(document.seed)
    module = case.model()
    data = DATA.get(case.model, sentences)()
    names = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = names[document.optimizer.name](module.parameters(), **document.optimizer.arguments)
    averages = {name: value.detach().clone() for name, value in module.named_parameters(remove_duplicate=False)}
    losses, tests = [], []

    def loss_of(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(module(rows).flatten(0, -2), targets.flatten())

    for _ in range(document.epochs):
        optimizer.zero_grad()
        loss = loss_of(*data["train"])
        loss.backward()
        if document.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), document.clip)
        optimizer.step()
        losses.append(loss.item())
        if document.ema is not None:
            for name, value in module.named_parameters(remove_duplicate=False):
                averages[name] = document.ema * averages[name] + (1.0 - document.ema) * value.detach()
        with torch.no_grad():
            tests.append(loss_of(*data["test"]).item())
    weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
    if document.ema is not None:
        weights |= averages
    return {"losses": losses, "tests": tests, "weights": weights}


@dataclass(frozen=True)
class CountedLayer:
    """Collectives of a transformer layer, forward and backward, as torch's CommDebugMode counts them; and its bytes."""

    rows: int = 4

    def __call__(self, rank: int) -> dict[str, Any]:
        torch.manual_seed(0)
        layer, world = Layer(), torch.distributed.get_world_size()
        given = torch.randn(self.rows, TOKENS, WIDTH, requires_grad=True)
        traced = trace(layer, CallArguments.of((given.detach(),)))
        facts = graph_facts(traced, (given.detach(),))
        priced = self._priced(traced, facts, world)
        choice = choose_splits(traced.graph, facts, world, {})
        parameters = dict(traced.graph.named_parameters())
        group = TensorGroup(world, rank, torch.distributed.group.WORLD)
        weights = SplitWeights(group, [(parameters[name], split) for name, split in choice.weights.items()])
        stage = lower(traced.graph, weights.splits, facts, group, {}).module
        weights.replace(stage)
        found: dict[str, Any] = {"priced": priced}
        with CommDebugMode() as forward:
            (output,) = stage(given)
        found["forward"], found["forward bytes"] = _counts(forward), group.sent_bytes
        with CommDebugMode() as backward:
            output.sum().backward()
        found["backward"], found["backward bytes"] = _counts(backward), group.sent_bytes - found["forward bytes"]
        return found

    def _priced(self, traced: TracedModule, facts: GraphFacts, world: int) -> dict[str, tuple[float, float]]:
        """All-reduces and bytes that a process sends, forward and backward, as `parallel: auto` prices them."""
        inputs = (torch.randn(self.rows, TOKENS, WIDTH),)
        profile = profile_traced(traced, facts, inputs, runs=1)
        parts = LayerParts(traced, facts, Split("", TensorSpec(ways=world)).document).profile(profile, world, self.rows)
        assert isinstance(parts, PartsProfile)
        ways = {"forward": parts.forward_sums, "backward": parts.backward_sums}
        totals = {name: sum(sums, GroupSums()) for name, sums in ways.items()}
        return {name: (total.count, total.sent_bytes(world)) for name, total in totals.items()}


@dataclass(frozen=True)
class DestroyedGroups:
    """Groups of two devices, each of two processes: whether torch still has them, before and after `destroy`."""

    def __call__(self, rank: int) -> list[list[bool]]:
        groups = make_process_groups(make_schedule("1f1b", 2, 2), 1, {}, tensor=2)
        mine = [groups.pipeline, groups.tensor, groups.workers[rank // 2]]
        before = [_exists(group) for group in mine]
        torch.distributed.barrier()  # before that, other ranks of a group may still be connecting to this one
        groups.destroy()
        return [before, [_exists(group) for group in mine]]


def _exists(group: torch.distributed.ProcessGroup | None) -> bool:
    try:
        return len(torch.distributed.get_process_group_ranks(group)) > 1
    except (KeyError, ValueError):
        return False


def _counts(mode: CommDebugMode) -> dict[str, int]:
    return {str(name): count for name, count in mode.get_comm_counts().items()}
