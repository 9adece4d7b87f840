from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from jellybean.bench.heldout import HeldOut
from jellybean.bench.shown_answers import MOST_SHOWN, PICTURE_SIZE, JudgedAnswer, accuracy_of, picture, shown_answers
from jellybean_agent import Array


def _opened(text: str | None) -> Image.Image:
    assert text is not None
    return Image.open(io.BytesIO(base64.b64decode(text)))


def _file(kind: str, size: tuple[int, int]) -> Array:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(file, kind)
    return np.frombuffer(file.getvalue() + b"\0" * 100, np.uint8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_bytes_of_a_file_are_a_picture_that_is_scaled_down(kind: str) -> None:
    image = _opened(picture(_file(kind, (1600, 400))))
    assert image.size == (PICTURE_SIZE[0], 80)
    red, green, _ = image.convert("RGB").getpixel((10, 10))
    assert red > 190 and green < 40


@pytest.mark.parametrize(
    ("shape", "mode"),
    [((16, 96), "L"), ((16, 96, 3), "RGB"), ((3, 16, 96), "RGB"), ((1, 16, 96), "L"), ((1, 16, 96, 1), "L")],
)
def test_arrays_of_pixels_are_pictures(shape: tuple[int, ...], mode: str) -> None:
    pixels = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape).astype(np.float32)
    image = _opened(picture(pixels))
    assert (image.size, image.mode) == ((96, 16), mode)
    channels = np.asarray(image)
    assert (channels.min(), channels.max()) == (0, 255)


@pytest.mark.parametrize(
    "row",
    [
        np.zeros(2000, np.uint8),
        np.frombuffer(b"GIF89a" + b"\1" * 300, np.uint8),
        _file("PNG", (64, 64))[:40],
        np.zeros((2, 90)),
        np.zeros((3, 4, 5, 6)),
        np.array(["text"]),
        np.float32(3.0),
    ],
)
def test_anything_else_is_none(row: Array) -> None:
    assert picture(row) is None


def _judged(shares: list[float]) -> list[JudgedAnswer]:
    return [JudgedAnswer(row, {"number": np.array([row])}, share) for row, share in enumerate(shares)]


def test_the_least_correct_answers_come_first_and_others_follow() -> None:
    data = HeldOut({"strip": np.zeros((40, 16, 16))}, labels=np.arange(40))
    shown = shown_answers(data, _judged([1.0] * 30 + [0.0, 0.5] * 5))
    assert len(shown) == MOST_SHOWN
    assert [answer.row for answer in shown[:4]] == [30, 32, 34, 36]
    assert [answer.correctness for answer in shown[4:]] == sorted(answer.correctness or 0.0 for answer in shown[4:])
    assert shown[-1].correctness == 1.0
    assert len({answer.row for answer in shown}) == MOST_SHOWN
    assert (shown[0].label, shown[0].answer) == ("30", "30")
    assert "picture" not in shown[0].to_json() and shown[0].picture


def test_accuracy_is_the_mean_over_rows() -> None:
    assert accuracy_of(_judged([1.0, 0.5, 0.0, 1.0])) == 62.5
    assert accuracy_of([JudgedAnswer(0, {}, None)]) is None


def test_answers_are_shown_as_the_metric_reads_them() -> None:
    def shown(metric: str, answer: Array, label: Array) -> tuple[str, str | None]:
        data = HeldOut({"x": np.zeros((1, 3))}, labels=label[np.newaxis], metric=metric)
        (found,) = shown_answers(data, [JudgedAnswer(0, {"sink": answer}, 1.0)])
        assert found.picture is None
        return found.answer, found.label

    text = np.frombuffer("Größe 4\nnext\0\0".encode(), np.uint8)
    assert shown("word_accuracy", text, text) == ("Größe 4\nnext", "Größe 4\nnext")
    assert shown("top1", np.array([[0.1, 0.7, 0.2]]), np.array(2)) == ("1 (score 0.7)", "2")
    assert shown("exact_match", np.arange(9), np.arange(9))[0] == "0 1 2 3 4 5 …"
    assert len(shown("character_accuracy", np.full(900, 65, np.uint8), text)[0]) == 200


def test_several_sinks_without_labels_are_named() -> None:
    data = HeldOut({"x": np.zeros((1, 3))})
    (found,) = shown_answers(data, [JudgedAnswer(0, {"a": np.array([1]), "b": np.array([2.5])}, None)])
    assert (found.answer, found.label, found.correctness) == ("a: 1; b: 2.5", None, None)
