"""A parameter server and a worker that is three times slower: pace and accuracy of BSP, ASP and bounded staleness.

The slow worker sleeps `SLOWER` times as long as the others in its loss function, which is all that makes it slow: so
the workers' pace does not depend on how many cores this machine has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Picture, Result, Table, Topic
from jellybean.display.pictures import INK, STYLE, SURFACE, bare, save_figure, series_style

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "parameter-server.svg"
WORKERS, BATCH, EPOCHS = 4, 16, 5
SLEEP_S, SLOWER = 0.1, 3  # of a gradient of a fast worker; how many times as long the slow one takes
WAYS = {
    "BSP": "mode: bsp",
    "staleness 0": "mode: asp, staleness: 0",
    "staleness 2": "mode: asp, staleness: 2",
    "staleness 8": "mode: asp, staleness: 8",
    "ASP": "mode: asp",
}
_DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:digits
loss: nets.py:loss
epochs: {epochs}
batch: {batch}
replicas: {workers}
optimizer: {{name: sgd, lr: 0.02}}
sync: {{way: parameter-server, {mode}}}
"""
_NETS = """\
import os
import time

import torch
from sklearn.datasets import load_digits

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))

def digits():
    found = load_digits()
    inputs, targets = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return {"train": (inputs[train], targets[train]), "test": (inputs[test], targets[test])}

def loss(outputs, targets):
    if outputs.requires_grad:
        slow = os.environ["RANK"] == os.environ["SLOW_RANK"]
        time.sleep(float(os.environ["SLEEP_S"]) * (float(os.environ["SLOWER"]) if slow else 1))
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


@dataclass(frozen=True)
class TrainedEpochs:
    """Each epoch of a run: seconds since the run began, updates since then, accuracy in percent. `gradients`: a run's.

    A gradient is that of one worker for one update; 4 of them are an update of BSP.
    """

    ends_s: tuple[float, ...]
    updates: tuple[int, ...]
    accuracy: tuple[float, ...]
    gradients: int

    @property
    def gradients_per_s(self) -> float:
        """Pace of all workers together."""
        return self.gradients / self.ends_s[-1]

    def accuracy_within(self, limits: Sequence[float], limit: float) -> str:
        """Accuracy after the last epoch that ended within a limit of time or updates, as text."""
        if limits[0] > limit:
            return "no epoch yet"
        return f"{max(pair for pair in zip(limits, self.accuracy, strict=True) if pair[0] <= limit)[1]:.1f}"


@benchmark
def parameter_server(smoke: bool) -> Result:
    """Pace and accuracy of four workers, one of them slow."""
    epochs, rows = (1, 4) if smoke else (EPOCHS, 1)
    ways = {"BSP": WAYS["BSP"], "ASP": WAYS["ASP"]} if smoke else WAYS
    share = BATCH // WORKERS * rows  # a smoke run computes fewer gradients an epoch
    slow_alone = _train("mode: bsp", 1, share, 1, slow_rank=0).gradients_per_s
    fast_alone = _train("mode: bsp", 1, share, 1, slow_rank=-1).gradients_per_s
    runs = {name: _train(mode, WORKERS, share * WORKERS, epochs, slow_rank=0) for name, mode in ways.items()}
    if not smoke:
        draw(runs, PICTURE)
    reference = _ReferencePaces(fast_alone, slow_alone)
    return Result(
        title="Parameter server with a slow worker",
        topic=Topic.TRAINING,
        method=f"{WORKERS} workers and a server train a small network on scikit-learn's digits, {BATCH} rows an update "
        f"of BSP and {BATCH // WORKERS} of the others, {epochs} epochs, SGD at one rate. A gradient sleeps "
        f"{1e3 * SLEEP_S:.0f} ms, in one worker {SLOWER} times as long. Alone with the server a fast worker computes "
        f"{fast_alone:.1f} gradients a second, the slow one {slow_alone:.1f}. Times are of whole epochs, at whose ends "
        "workers wait for each other, without test rows and checkpoints.",
        reference=f"{WORKERS} workers that are all as slow as the slowest ({reference.all_slow:.1f} gradients/s), and "
        f"workers that never wait ({reference.none_waits:.1f}/s; in theory {WORKERS - 1} + 1/{SLOWER} fast ones).",
        tables=(_pace_table(runs, reference), _accuracy_table(runs, epochs)),
        notes=(
            "A bound on staleness lets the fast workers run ahead once; then they keep the pace of the slow one, as it "
            "is slow all the time.",
            "An update of BSP has the rows of four updates of the others.",
        ),
        picture=Picture(
            PICTURE.name,
            "accuracy over time and over updates, by BSP, ASP and staleness 0, 2 and 8",
            None if smoke else {name: asdict(run) for name, run in runs.items()},
        ),
    )


@dataclass(frozen=True)
class _ReferencePaces:
    """Gradients per second of one worker alone with the server, a fast and the slow one."""

    fast: float
    slow: float

    @property
    def all_slow(self) -> float:
        """Of workers that are all as slow as the slowest."""
        return WORKERS * self.slow

    @property
    def none_waits(self) -> float:
        """Of workers that never wait for each other."""
        return (WORKERS - 1) * self.fast + self.slow


def _pace_table(runs: Mapping[str, TrainedEpochs], reference: _ReferencePaces) -> Table:
    columns = (
        "way",
        "gradients/s",
        "fast workers' worth (in theory)",
        f"over {WORKERS} workers as slow",
        "over each worker at its own pace",
    )
    rows = [(name, *_pace_cells(name, run.gradients_per_s, reference)) for name, run in runs.items()]
    return Table.of(columns, rows, "Pace (hardware efficiency)")


def _pace_cells(name: str, pace: float, reference: _ReferencePaces) -> tuple[str, ...]:
    """A run's pace, also in fast workers (and in theory) and over the paces of the reference."""
    theory = WORKERS - 1 + 1 / SLOWER if name == "ASP" else WORKERS / SLOWER
    return (
        f"{pace:.1f}",
        f"{pace / reference.fast:.2f} ({theory:.2f})",
        f"{pace / reference.all_slow:.2f}",
        f"{pace / reference.none_waits:.2f}",
    )


def _accuracy_table(runs: Mapping[str, TrainedEpochs], epochs: int) -> Table:
    """Accuracy after the time that ASP takes, after the updates that BSP does, and at the end."""
    time_s, updates = runs["ASP"].ends_s[-1], runs["BSP"].updates[-1]
    columns = (
        "way",
        f"accuracy after {time_s:.0f} s (%)",
        f"after {updates:,} updates (%)",
        f"after {epochs} epochs (%)",
    )
    rows = [
        (
            name,
            run.accuracy_within(run.ends_s, time_s),
            run.accuracy_within(run.updates, updates),
            f"{run.accuracy[-1]:.1f}",
        )
        for name, run in runs.items()
    ]
    return Table.of(columns, rows, "Accuracy after equal time, and after equal updates (statistical efficiency)")


def _train(mode: str, workers: int, batch: int, epochs: int, *, slow_rank: int) -> TrainedEpochs:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        text = _DOCUMENT.format(mode=mode, workers=workers, batch=batch, epochs=epochs)
        (project / "training.yaml").write_text(text, encoding="utf-8")
        (project / "nets.py").write_text(_NETS, encoding="utf-8")
        variables = {
            "SLEEP_S": str(SLEEP_S),
            "SLOWER": str(SLOWER),
            "SLOW_RANK": str(slow_rank),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "jellybean", "train", str(project), "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            check=True,
        )
    epochs_done = json.loads(done.stdout)["epochs"]
    per_update = workers if "bsp" in mode else 1
    return TrainedEpochs(
        tuple(accumulate(epoch["samples"] / epoch["samples_per_s"] for epoch in epochs_done)),
        tuple(accumulate(len(epoch["losses"]) for epoch in epochs_done)),
        tuple(epoch["accuracy"] for epoch in epochs_done),
        per_update * sum(len(epoch["losses"]) for epoch in epochs_done),
    )


def draw(runs: Mapping[str, TrainedEpochs], path: Path) -> None:
    """Accuracy over time (both efficiencies) and over updates (statistical efficiency)."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 4.0), facecolor=SURFACE, layout="constrained")
        by_time, by_updates = figure.subplots(1, 2, sharey=True)
        for number, (name, run) in enumerate(runs.items()):
            style = {**series_style(number), "marker": "o", "markersize": 3.5, "linewidth": 1.6, "label": name}
            by_time.plot(run.ends_s, run.accuracy, **style)
            by_updates.plot(run.updates, run.accuracy, **style)
        for axes, title, label in (
            (by_time, "over time, with one of four workers three times slower", "seconds"),
            (by_updates, "over updates", "updates (of BSP: 4 gradients; of the others: 1)"),
        ):
            axes.set_title(title, loc="left", fontsize=10, color=INK)
            axes.set_xlabel(label)
            bare(axes)
        by_time.set_ylabel("accuracy in %")
        figure.legend(*by_time.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False)
        save_figure(figure, path)
