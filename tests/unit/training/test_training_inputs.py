"""Errors in a user's model, data and loss are reported in one line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents.training import load_training  # noqa: E402
from jellybean.documents.training_data import FolderSpec  # noqa: E402
from jellybean.errors import JellyBeanError  # noqa: E402
from jellybean.training.data.loading import load_data  # noqa: E402
from tests.support.training_inputs import load_training_inputs  # noqa: E402

DOCUMENT = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 1
batch: 4
optimizer: {name: sgd, lr: 0.1}
"""
NETS = """\
import torch

def net():
    return torch.nn.Linear(3, 2)

def data():
    rows = (torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    return {"train": rows, "test": rows}
"""


def _folder(tmp_path, nets=NETS, document=DOCUMENT):
    (tmp_path / "nets.py").write_text(nets)
    (tmp_path / "training.yaml").write_text(document)
    return load_training(tmp_path), tmp_path


def test_good(tmp_path):
    assert isinstance(load_training_inputs(*_folder(tmp_path)).module, torch.nn.Linear)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("import torch", "import torhc", "nets.py cannot be imported.*torhc"),
        ("def net", "def ent", "nets.py has no function 'net'"),
        (
            "import torch",
            "try:\n    1 / 0\nexcept Exception as error:\n    raise ImportError('the library hides it') from error",
            r"nets.py cannot be imported: .*the library hides it \(because of division by zero\)",
        ),
        ("import torch", "import sys; sys.exit(3)", "nets.py cannot be imported: it exits with 3"),
        ("def net()", "def net(width)", "nets.py:net failed: net.. missing 1 required"),
        ("return torch.nn.Linear(3, 2)", "return 1 / 0", r"nets.py:net failed at .*nets.py:4: .*division"),
        ("return torch.nn.Linear(3, 2)", "return 7", "returned int; it must return a torch.nn.Module"),
        ("Linear(3, 2)", "Linear(4, 2)", "cannot be trained on nets.py:data"),
        ("torch.nn.Linear(3, 2)", "torch.nn.LazyLinear(2)", "uninitialized parameter"),
        ("torch.nn.Linear(3, 2)", "torch.nn.Linear(3, 2).requires_grad_(False)", "there is nothing to train"),
        ("torch.nn.Linear(3, 2)", "torch.nn.Flatten(0)", r"gives the shape \[12\]; cross_entropy takes"),
        ("Linear(3, 2)", "Linear('a', 2)", r"nets.py:net failed at [^ ]*/nets.py:4: "),
        ('"test": rows', '"tset": rows', "returned a dict without 'test'; it must return {'train'"),
        ("torch.zeros(8,", "torch.zeros(7,", r"inputs of shape \[8, 3\] and targets of shape \[7\]"),
        ("torch.randn(8, 3)", "torch.randn(8, 3).double()", "float64 and the weights float32: return inputs.astype"),
        ("torch.randn(8, 3)", "torch.randn(8, 3).log()", "row 0 of the inputs has nan"),
        ("torch.randn(8, 3)", "['a'] * 8", "as arrays of numbers"),
        ("torch.randn(8, 3)", "torch.randn(0, 3)", r"inputs of shape \[0, 3\]"),
        ("torch.zeros(8,", "2 + torch.zeros(8,", "targets in train are 2 to 2, and .* scores of 2 classes, 0 to 1"),
        ('"test": rows', '"test": (rows[0][:, :2], rows[1])', r"float32 \[3\] in train and float32 \[2\] in test"),
        ('"test": rows', '"test": rows[0]', "nets.py:data, test: it must return.*it has a Tensor"),
    ],
)
def test_mistakes(tmp_path, old, new, told):
    with pytest.raises(JellyBeanError, match=told):
        load_training_inputs(*_folder(tmp_path, NETS.replace(old, new)))


def test_workers_that_nothing_needs(tmp_path):
    given = _folder(tmp_path, document=DOCUMENT.replace("nets.py:data", "{function: nets.py:data, workers: 2}"))
    with pytest.raises(JellyBeanError, match="workers is for data sets and streams"):
        load_training_inputs(*given)


def test_a_labelled_folder(tmp_path):
    from PIL import Image

    document, _ = _folder(tmp_path)
    document = document.model_copy(update={"data": FolderSpec(folder="pictures", size=4, channels=1, heldout=0.25)})
    for label, shade in (("dark", 0), ("light", 255)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (9, 7), shade).save(tmp_path / "pictures" / label / f"{number}.png")
    found = load_data(document, tmp_path)
    assert found.labels == ("dark", "light")
    assert found.train.samples.inputs.tensors[0].shape == (6, 1, 4, 4)
    assert found.test.rows == 2
    for part in (found.train, found.test):
        shades = part.samples.inputs.tensors[0].mean((1, 2, 3)).round().long()
        assert torch.equal(shades, part.samples.target(slice(None)))
    (tmp_path / "pictures" / "dark" / "notes.png").write_text("no picture")
    with pytest.raises(JellyBeanError, match="is no picture"):
        load_data(document, tmp_path)
