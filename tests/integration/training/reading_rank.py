"""A process that reads rows by one worker, prints the worker's process number, and waits to be killed."""

from __future__ import annotations

import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset

from jellybean.training import ReadPlan
from jellybean.training.data.rows import MicrobatchIndex
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.data.sources import SourceSettings, find_source

ROWS = 8


class ProcessNumbers(Dataset):
    """Rows that say which process made them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(os.getpid())]), torch.tensor(row % 2)


if __name__ == "__main__":
    settings = SourceSettings("rows", "train", 3, 4, targets=True, workers=1, stated=None)
    reader = find_source(DataLoader(ProcessNumbers()), settings).read(ReadPlan(MicrobatchSampler(ROWS, 4, 2, 1, None)))
    (inputs,) = reader.inputs(MicrobatchIndex(0, 0), (0,))
    print(int(inputs[0, 0]), flush=True)
    signal.pause()
