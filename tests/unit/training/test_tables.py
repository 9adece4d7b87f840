"""CSV files: what cannot be used is named by its line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import CsvSpec, TrainingDocument
from jellybean.training import TrainingError
from jellybean.training.data.loading import load_data
from jellybean.training.data.tables import read_csv

GOOD = "width, height,kind\n1,2.5,cat\n-3,4e1,dog\n\n5,6,cat\n"


def _read(folder, text, *, classes=True, **more):
    (folder / "rows.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    return read_csv(CsvSpec(**{"csv": "rows.csv", "target": "kind", **more}), folder, classes=classes)


def test_numbers_and_labels(tmp_path):
    table = _read(tmp_path, "\ufeff" + GOOD)
    assert table.samples.inputs.tensors[0].tolist() == [[1.0, 2.5], [-3.0, 40.0], [5.0, 6.0]]
    assert table.samples.inputs.tensors[0].dtype == torch.float32
    assert table.samples.target(slice(None)).tolist() == [0, 1, 0]
    assert table.labels == ("cat", "dog")


def test_targets_are_classes_or_numbers(tmp_path):
    text = "a,b,kind\n1,2,3\n4,5,0\n"
    classes = _read(tmp_path, text)
    assert classes.samples.target(slice(None)).tolist() == [3, 0]
    assert classes.labels == ()
    assert _read(tmp_path, text, classes=False).samples.target(slice(None)).tolist() == [[3.0], [0.0]]
    assert _read(tmp_path, text, columns=["b"]).samples.inputs.tensors[0].tolist() == [[2.0], [5.0]]


def test_long_numbers_among_texts_are_labels(tmp_path):
    assert _read(tmp_path, GOOD.replace("dog", "9" * 30)).labels == ("9" * 30, "cat")


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        (GOOD.replace("4e1", "four"), {}, "rows.csv:3: height is 'four', not a finite number"),
        (GOOD.replace("4e1", ""), {}, "rows.csv:3: height is empty"),
        (GOOD.replace("4e1", "nan"), {}, "rows.csv:3: height is 'nan'"),
        (GOOD.replace("4e1", "1e39"), {}, "rows.csv:3: height is '1e39', and 32-bit numbers end at 3.403e"),
        ("a,kind\n1,2\n\n2,-1e39\n", {"classes": False}, "rows.csv:4: kind is '-1e39', and 32-bit"),
        ("a,kind\n1,2\n\n2,99999999999999999999\n", {}, "rows.csv:4: kind is 99999999999999999999, and a class is"),
        (f"a,kind\n1,2\n2,{'9' * 5000}\n", {}, "rows.csv:3: kind is 999999999999999999..., and a class is"),
        (GOOD.replace("5,6,cat", "5,6"), {}, "rows.csv:5: it has 2 cells, and the header 3"),
        (GOOD.replace("5,6,cat", "5,6, "), {}, "rows.csv:5: kind is empty"),
        (GOOD, {"target": "knd"}, "rows.csv:1: the header has no column 'knd'; did you mean 'kind'"),
        (GOOD, {"columns": ["width", "depth"]}, "no column 'depth'"),
        (GOOD, {"columns": ["kind"]}, "no column is left for the inputs"),
        (GOOD, {"classes": False}, "rows.csv:2: kind is 'cat', not a finite number"),
        (GOOD.replace("height", "width"), {}, "the header has the column 'width' twice"),
        (GOOD.replace(",", ";"), {}, "separate cells by commas"),
        ("a,kind\n1,2\n", {}, "it has 1 rows below the header"),
        ("", {}, "rows.csv:1: the header has no column 'kind'; it has nothing"),
        (b"a,kind\n1,\xff\n2,3\n", {}, "cannot be read as CSV"),
        ('a,kind\n"1,2\n2,3\n', {}, "cannot be read as CSV"),
    ],
)
def test_mistakes(tmp_path, text, more, told):
    with pytest.raises(TrainingError, match=told):
        _read(tmp_path, text, **more)


def test_a_share_is_held_out(tmp_path):
    (tmp_path / "rows.csv").write_text(
        "a,kind\n" + "".join(f"{row},{row % 2}\n" for row in range(20)), encoding="utf-8"
    )
    document = TrainingDocument(
        kind="Training",
        model="nets.py:net",
        data=CsvSpec(csv="rows.csv", target="kind", heldout=0.25),
        epochs=1,
        batch=4,
        optimizer={"name": "sgd", "lr": 0.1},
    )
    data = load_data(document, tmp_path)
    assert (data.train.rows, data.test.rows) == (15, 5)
    rows = [
        value for part in (data.train, data.test) for value in part.example(20).inputs.tensors[0].flatten().tolist()
    ]
    assert sorted(rows) == list(range(20))
