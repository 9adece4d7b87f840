"""training.yaml: what is wrong is told with line and path; needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents.training import load_training
from jellybean.errors import DocumentError

GOOD = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 2
batch: 64
optimizer: {name: adam, lr: 0.001}
"""


def _written(folder: Path, text: str) -> Path:
    (folder / "training.yaml").write_text(text)
    return folder


def test_defaults(tmp_path):
    document = load_training(_written(tmp_path, GOOD), ["devices=2", "optimizer.lr=0.5"])
    assert (document.devices, document.ranks, document.schedule, document.optimizer.lr) == (2, 2, "auto", 0.5)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epochs: 2", "epochs: 0", "4:"),
        ("epochs: 2", "epochs: 2\nschedule: chimaera", "did you mean 'chimera'"),
        ("nets.py:net", "nets.py", "names no function"),
        ("batch: 64", "batch: 4\nmicrobatches: 8", "less than one sample for each of 8 micro-batches"),
        ("name: adam,", "name: adam, momentum: 0.9,", "adam has no momentum"),
        ("epochs: 2", "epochs: 2\nmemory: 4", "memory"),
        ("epochs: 2", "epoch: 2", "epoch"),
        ("kind: Training", "kind: Workflow", "Workflow"),
    ],
)
def test_mistakes(tmp_path, old, new, told):
    with pytest.raises(DocumentError, match=told):
        load_training(_written(tmp_path, GOOD.replace(old, new)))


def test_missing_file_says_what_to_write(tmp_path):
    with pytest.raises(DocumentError, match="kind: Training"):
        load_training(tmp_path)


def test_an_override_of_no_place(tmp_path):
    with pytest.raises(DocumentError, match="no such place"):
        load_training(_written(tmp_path, GOOD), ["epochs.first=3"])
