"""Errors in a user's model, data and loss are reported in one line."""

from __future__ import annotations

import resource

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import FolderSpec, load_training
from jellybean.errors import JellyBeanError
from jellybean.pipeline import load_function, place_and_reason
from jellybean.training.data.loading import load_data
from jellybean.training.samples import read_samples
from tests.support.training_inputs import load_training_inputs

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


OWN = """\
class Own(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, x):
        return super().forward(torch.nn.functional.relu(x + torch.zeros(5)))
"""


ANYTHING = """\
class Anything(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, x, mask=None, **others):
        return super().forward(x) * mask
"""


def _folder(tmp_path, nets=NETS, document=DOCUMENT):
    (tmp_path / "nets.py").write_text(nets, encoding="utf-8")
    (tmp_path / "training.yaml").write_text(document, encoding="utf-8")
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
        (
            "return torch.nn.Linear(3, 2)\n\ndef data():\n    rows = (torch.randn(8, 3)",
            f"return Anything()\n\n{ANYTHING}\n"
            "def data():\n    rows = ({'x': torch.randn(8, 3), 'maks': torch.ones(8)}",
            r"; forward of Anything has no maks: it takes x, mask\)$",
        ),
        ("return torch.nn.Linear(3, 2)", "return 7", "returned int; it must return a torch.nn.Module"),
        (
            "Linear(3, 2)",
            "Linear(4, 2)",
            r"cannot be trained on nets.py:data with the loss cross_entropy; it failed: .*\(inputs: input_0 float32 "
            r"\[\d, 3\]\)$",
        ),
        (
            "return torch.nn.Linear(3, 2)",
            f"return Own()\n\n{OWN}",
            r"it failed at [^ ]*/nets.py:10: .*must match.*\(inputs: input_0 float32 \[\d, 3\]\)$",
        ),
        (
            "(torch.randn(8, 3)",
            "({'picture': torch.randn(8, 3)}",
            r"missing a required argument: 'input'; the inputs are picture float32 \[\d, 3\], and forward of "
            "Linear takes input$",
        ),
        (
            "return torch.nn.Linear(3, 2)",
            "return [torch.nn.Linear(3, 2)]",
            "write `stages: nets.py:net` in place of `mod",
        ),
        ("dtype=torch.long", "dtype=torch.float", r"the targets are float32, .*: return targets.astype\('int64'\)"),
        ("zeros(8,", "zeros(8, 1,", r"scores of shape \[\d, 2\] and targets .* return targets.reshape\(-1\)"),
        ("torch.zeros(8, dtype=torch.long)", "['cat', 'dog'] * 4", "such as 'cat': number classes by numpy.unique"),
        ("torch.nn.Linear(3, 2)", "torch.nn.LazyLinear(2)", "uninitialized parameter"),
        ("torch.nn.Linear(3, 2)", "torch.nn.Linear(3, 2).requires_grad_(False)", "there is nothing to train"),
        ("torch.nn.Linear(3, 2)", "torch.nn.Flatten(0)", r"gives the shape \[12\]; cross_entropy takes"),
        ("Linear(3, 2)", "Linear('a', 2)", r"nets.py:net failed at [^ ]*/nets.py:4: "),
        ('"test": rows', '"tset": rows', "returned a dict without 'test'; it must return {'train'"),
        ("torch.zeros(8,", "torch.zeros(7,", r"inputs of shape \[8, 3\] and targets of shape \[7\]"),
        ("torch.randn(8, 3)", "torch.randn(8, 3).double()", "float64 and the weights float32: return inputs.astype"),
        ("torch.randn(8, 3)", "torch.randn(8, 3).log()", "row 0 of the inputs has nan"),
        ("torch.randn(8, 3)", "['a'] * 8", "train: there are texts in place of numbers, such as 'a'"),
        ("torch.randn(8, 3)", "[[1], [2, 3]]", "as arrays of numbers"),
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
    (tmp_path / "pictures" / "dark" / "notes.png").write_text("no picture", encoding="utf-8")
    with pytest.raises(JellyBeanError, match="is no picture"):
        load_data(document, tmp_path)


def test_targets_of_mse_that_lack_a_dimension(tmp_path):
    nets = NETS.replace("Linear(3, 2)", "Linear(3, 1)").replace("dtype=torch.long", "dtype=torch.float")
    with pytest.raises(JellyBeanError, match=r"mse needs the same; return targets.reshape\(-1, 1\)$"):
        load_training_inputs(*_folder(tmp_path, nets, DOCUMENT + "loss: mse\n"))


def test_the_line_of_a_user_is_named_when_a_library_fails(tmp_path):
    """An error that a library raises from another module's code, below the user's line."""
    (tmp_path / "nets.py").write_text("import json\n\ndef net():\n    return json.loads('{')\n", encoding="utf-8")
    with pytest.raises(JellyBeanError, match=r"nets.py:net failed at [^ ]*/nets.py:4: Expecting"):
        load_function("nets.py", "net", tmp_path)()


def test_no_line_is_named_where_no_code_of_a_user_ran():
    with pytest.raises(RuntimeError) as raised:
        torch.utils.data.default_collate([torch.zeros(2), torch.zeros(3)])
    raised.value.__traceback__ = raised.value.__traceback__.tb_next
    assert place_and_reason(raised.value).startswith(": stack expects each tensor")


def test_the_first_of_stages_takes_the_inputs(tmp_path):
    nets = NETS.replace("return torch.nn.Linear(3, 2)", "return [torch.nn.Linear(3, 2)]")
    nets = nets.replace("(torch.randn(8, 3)", "({'picture': torch.randn(8, 3)}")
    with pytest.raises(JellyBeanError, match=r"the inputs are picture .* and forward of Linear takes input$"):
        load_training_inputs(*_folder(tmp_path, nets, DOCUMENT.replace("model:", "stages:")))


def test_a_tensor_that_autograd_needs_is_overwritten(tmp_path):
    """Found before the run, although the first trial keeps activations in a file, where autograd checks nothing."""
    nets = NETS.replace("torch.nn.Linear(3, 2)", "Overwrites(3, 2)").replace(
        "def net", "class Overwrites(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x).sigmoid()\n"
        "        y.mul_(2)\n"
        "        return y\n\n\ndef net",
    )  # fmt: skip
    document, folder = _folder(tmp_path, nets)
    with pytest.raises(JellyBeanError, match=r"nets.py:net cannot be trained.*inplace operation"):
        load_training_inputs(document, folder)


def test_a_limit_on_files_is_no_error_of_the_model(tmp_path):
    """Activations of 96 KiB a layer are written to one."""
    wide = NETS.replace(
        "torch.nn.Linear(3, 2)",
        "torch.nn.Sequential(torch.nn.Linear(3, 8192), torch.nn.Tanh(), torch.nn.Linear(8192, 2))",
    )
    document, folder = _folder(tmp_path, wide)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60 * 1024, hard))
    try:
        with pytest.raises(JellyBeanError, match=r"^activations cannot be written to .*File too large; .*TMPDIR"):
            load_training_inputs(document, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_pictures_of_16_bits_and_arrays_in_any_byte_order(tmp_path):
    from PIL import Image

    document, _ = _folder(tmp_path)
    document = document.model_copy(update={"data": FolderSpec(folder="pictures", size=2, channels=1, heldout=0.5)})
    for label, shade in (("dark", 1000), ("light", 60000)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((2, 2), shade, np.uint16)).save(tmp_path / "pictures" / label / f"{number}.png")
    found = load_data(document, tmp_path)
    values = torch.cat([part.samples.inputs.tensors[0].flatten() for part in (found.train, found.test)])
    assert sorted({round(float(value) * 65535) for value in values}) == [1000, 60000]
    samples = read_samples(
        (np.arange(6.0).reshape(2, 3).astype(">f4"), np.array([0, 1], ">i8")), "f", "train", targets=True
    )
    assert samples.inputs.tensors[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    masked = np.ma.masked_array(np.ones((2, 3), np.float32), np.eye(2, 3, dtype=bool))
    with pytest.raises(JellyBeanError, match="2 of 6 values are masked out"):
        read_samples((masked, np.array([0, 1])), "f", "train", targets=True)
