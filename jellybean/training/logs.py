"""What a run tells while it lasts: a line per epoch for people, events for TensorBoard, JSON lines for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jellybean.training.train import Epoch, to_json


def line(epoch: Epoch, epochs: int) -> str:
    """For people."""
    accuracy = "" if epoch.accuracy is None else f", accuracy {epoch.accuracy:.2f}"
    return (
        f"epoch {epoch.number}/{epochs}: loss {epoch.loss:.4f}{accuracy}, {epoch.samples_per_s:,.0f} samples/s, "
        f"idle {epoch.idle:.0%} (predicted {epoch.predicted_idle:.0%}), {epoch.left_s:.0f} s left"
    )


class Logs:
    """Files of one run in `folder`: events for TensorBoard, and epochs.jsonl."""

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writer: Any = SummaryWriter(str(folder), purge_step=done)

    def add(self, epoch: Epoch) -> None:
        """One more epoch."""
        updates = len(epoch.losses)
        for index, loss in enumerate(epoch.losses):
            self._writer.add_scalar("loss", loss, (epoch.number - 1) * updates + index + 1)
        step = epoch.number * updates
        if epoch.accuracy is not None:
            self._writer.add_scalar("accuracy", epoch.accuracy, step)
        self._writer.add_scalar("test loss", epoch.test_loss, step)
        self._writer.add_scalar("samples per s", epoch.samples_per_s, step)
        self._writer.add_scalars("idle", {"measured": epoch.idle, "predicted": epoch.predicted_idle}, step)
        self._writer.flush()
        with (self._folder / "epochs.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(to_json(epoch)) + "\n")

    def close(self) -> None:
        """Everything is on disk."""
        self._writer.close()
