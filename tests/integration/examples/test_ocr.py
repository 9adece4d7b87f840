"""The ocr example reads what is written, as well as the package does whose models it takes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from jellybean.answer_metrics import correctness
from tests.support.paths import EXAMPLES
from tests.support.skips import NotInstalled

for _name in ("cv2", "pyclipper", "rapidocr", "rapidocr_onnxruntime"):
    pytest.importorskip(_name, reason=NotInstalled.OCR)

OCR = EXAMPLES / "ocr"
COUNT, SEED = 4, 3  # one of each kind of sheet
Run = Callable[[np.ndarray], np.ndarray]


class Modules(NamedTuple):
    steps: ModuleType
    pictures: ModuleType
    ppocr: ModuleType


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    names = ("ocr_steps", "pictures", "ppocr")
    loaded = []
    for name in names:
        spec = importlib.util.spec_from_file_location(name, OCR / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        loaded.append(module)
    yield Modules(*loaded)
    for name in names:
        del sys.modules[name]


def runner(model: onnx.ModelProto) -> Run:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda array: session.run(None, {given.name: array})[0]


@pytest.fixture(scope="module")
def read(modules: Modules) -> Callable[[bytes], str]:
    """The text in a picture, by the workflow's operators one after another."""
    steps, _, ppocr = modules
    detect = runner(ppocr.detector(ppocr.take("detect-v6"), 960))
    classify = runner(ppocr.classifier(ppocr.take("classify")))
    recognise = runner(ppocr.recogniser(ppocr.take("recognise-v6")))

    def text(file: bytes) -> str:
        pixels = steps.decode({"picture": np.frombuffer(file, np.uint8)[np.newaxis]})["pixels"]
        lines = steps.cut_lines({"detect": detect(pixels), "decode": pixels})["lines"]
        spelt = []
        for line in np.split(lines, len(lines)) if len(lines) else []:
            upside_down = classify(steps.thumbnail({"line": line})["line"])
            upright = steps.turn({"lines": line, "classify": upside_down})["line"]
            spelt.append(steps.spell({"characters": recognise(upright)})["text"])
        joined = steps.join({"lines": np.concatenate(spelt) if spelt else np.zeros(0, np.uint8)})["text"]
        return joined.tobytes().decode()

    return text


def share(read: str, label: str) -> float:
    return correctness("word_accuracy", *(np.frombuffer(text.encode(), np.uint8) for text in (read, label)))


@pytest.mark.slow
def test_words_are_read_as_well_as_by_rapidocr(modules: Modules, read: Callable[[bytes], str]) -> None:
    import cv2
    from rapidocr import RapidOCR

    files, texts = modules.pictures.pictures(COUNT, SEED)
    rapid = RapidOCR(params={"Global.log_level": "critical"})
    ours = [share(read(file), text) for file, text in zip(files, texts, strict=True)]
    theirs = []
    for file, text in zip(files, texts, strict=True):
        found = rapid(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR))
        theirs.append(share("\n".join(found.txts or ()), text))
    assert np.mean(ours) > 0.8
    assert np.mean(ours) >= np.mean(theirs) - 0.01


@pytest.mark.slow
def test_a_picture_upside_down_is_read_too(modules: Modules, read: Callable[[bytes], str]) -> None:
    import cv2

    (file, *_), (text, *_) = modules.pictures.pictures(1, SEED)
    turned = cv2.rotate(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.ROTATE_180)
    assert share(read(cv2.imencode(".png", turned)[1].tobytes()), text) == pytest.approx(
        share(read(file), text), abs=0.1
    )


def test_a_picture_without_text(read: Callable[[bytes], str]) -> None:
    import cv2

    assert read(cv2.imencode(".png", np.full((320, 480, 3), 200, np.uint8))[1].tobytes()) == ""


def test_pictures_are_the_same_for_the_same_seed(modules: Modules) -> None:
    one, other = (modules.pictures.pictures(2, SEED) for _ in range(2))
    assert one == other
    assert one[0] != modules.pictures.pictures(2, SEED + 1)[0]
    rows = modules.pictures.as_rows(one[0])
    assert [row.tobytes().rstrip(b"\0") for row in rows] == [file.rstrip(b"\0") for file in one[0]]


def test_lines_of_one_picture_keep_their_own_lengths(modules: Modules) -> None:
    steps = modules.steps
    line = np.full((48, 100, 3), 7, np.uint8)
    padded = np.pad(line, ((0, 0), (0, 60), (0, 0)))
    assert steps.without_padding(padded).shape == (48, 100, 3)
    assert steps.thumbnail({"line": padded[np.newaxis]})["line"].shape == (1, 48, 192, 3)
    upside_down = np.array([[0.05, 0.95]], np.float32)
    marked = padded.copy()
    marked[0, 0] = 200
    turned = steps.turn({"lines": marked[np.newaxis], "classify": upside_down}, width=80)["line"]
    assert turned.shape == (1, 48, 100, 3)
    assert turned[0, 47, 99].tolist() == [200] * 3


@pytest.mark.parametrize(
    ("codes", "shares", "text"),
    [
        ("\0aa\0abb", [1.0] * 7, "aab\n"),  # equal neighbours are one character, unless a blank is between them
        ("\0\0", [1.0] * 2, ""),
        ("ab", [0.4, 0.5], ""),  # below the threshold
        (" ä€ ", [1.0] * 4, "ä€\n"),
    ],
)
def test_positions_become_characters(modules: Modules, codes: str, shares: list[float], text: str) -> None:
    characters = np.array([[ord(code), share] for code, share in zip(codes, shares, strict=True)], np.float32)
    assert modules.steps.spell({"characters": characters[np.newaxis]})["text"].tobytes().decode() == text


def test_bytes_that_are_no_picture_are_the_clients_error(modules: Modules) -> None:
    from jellybean_agent import InvalidInputError

    with pytest.raises(InvalidInputError, match="no picture"):
        modules.steps.decode({"picture": np.arange(9, dtype=np.uint8)[np.newaxis]})


def test_another_model_in_the_wheel_is_refused(
    modules: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "otherocr"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "model.onnx").write_bytes(b"another")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(modules.ppocr.SOURCES, "classify", ("otherocr", "model.onnx", "0" * 64))
    with pytest.raises(modules.ppocr.ModelSourceError, match="is not the model of this example"):
        modules.ppocr.take("classify")
