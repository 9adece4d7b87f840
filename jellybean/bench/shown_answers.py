"""A few answers of a measurement as people read them: the input's picture, its label, and what was answered.

A percentage says how often answers are wrong, these say how: the report shows them beside the accuracy.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from jellybean.answer_metrics import MetricError, text_of
from jellybean.bench.heldout import HeldOut
from jellybean_agent import Array

MOST_SHOWN = 8  # half of them the least correct, the others spread over all the rest
PICTURE_SIZE = (320, 240)  # pixels, width and height, that a picture is scaled down to
MOST_CHARACTERS = 200  # of a label or an answer
_MOST_NUMBERS = 6
_LEAST_SIDE = 4  # pixels: smaller arrays are numbers rather than pictures
_CHANNELS = (1, 3)
_TEXT_METRICS = ("word_accuracy", "character_accuracy")


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The answers to one held-out row: the first one's tensor by sink, and the mean correctness of all, 0 to 1.

    `correctness` is None without labels.
    """

    row: int
    outputs: Mapping[str, Array]
    correctness: float | None


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One held-out row as text: label and answer, and its picture (PNG in base64) if one of the inputs is one."""

    row: int
    answer: str
    label: str | None
    correctness: float | None
    picture: str | None

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values, without the picture, which nobody reads there."""
        found = asdict(self)
        del found["picture"]
        return found


def accuracy_of(judged: Sequence[JudgedAnswer]) -> float | None:
    """Percent of the answers that is correct; every held-out row has equal weight. None without labels or answers."""
    known = [answer.correctness for answer in judged if answer.correctness is not None]
    return 100.0 * float(np.mean(known)) if known else None


def shown_answers(data: HeldOut, judged: Sequence[JudgedAnswer], most: int = MOST_SHOWN) -> tuple[ShownAnswer, ...]:
    """The least correct answers and others, in order of correctness; rows with equal correctness by their number."""
    ranked = sorted(judged, key=lambda answer: (answer.correctness or 0.0, answer.row))
    if len(ranked) > most:
        worst = most // 2
        others = np.linspace(worst, len(ranked) - 1, most - worst).round().astype(int)
        ranked = [*ranked[:worst], *(ranked[index] for index in others)]
    return tuple(_shown(data, answer) for answer in ranked)


def _shown(data: HeldOut, judged: JudgedAnswer) -> ShownAnswer:
    label = None if data.labels is None else data.labels[judged.row]
    judged_only = data.labels is not None and data.labels_of in judged.outputs  # the label is beside its own answer
    outputs = {sink: answer for sink, answer in judged.outputs.items() if sink == data.labels_of or not judged_only}
    texts = {sink: _answer_text(data.metric, answer) for sink, answer in outputs.items()}
    answer = next(iter(texts.values())) if len(texts) == 1 else "; ".join(f"{s}: {text}" for s, text in texts.items())
    return ShownAnswer(
        row=judged.row,
        answer=answer,
        label=None if label is None else _text(data.metric, label),
        correctness=judged.correctness,
        picture=next((found for rows in data.inputs.values() if (found := picture(rows[judged.row]))), None),
    )


def _answer_text(metric: str, answer: Array) -> str:
    """An answer as text; of scores, as `top1` judges them, the index of the highest."""
    if metric == "top1" and answer.size > 1:
        scores = answer.reshape(-1)
        best = int(np.argmax(scores))
        return f"{best} (score {scores[best]:.3g})"
    return _text(metric, answer)


def _text(metric: str, value: Array) -> str:
    value = np.asarray(value)
    if metric in _TEXT_METRICS:
        try:
            return _shortened(text_of(value))
        except MetricError:
            pass
    numbers = [f"{number:.4g}" if value.dtype.kind == "f" else str(number) for number in value.reshape(-1).tolist()]
    return " ".join(numbers[:_MOST_NUMBERS]) + (" …" if len(numbers) > _MOST_NUMBERS else "")


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def picture(row: Array) -> str | None:
    """PNG in base64 of a held-out row that is a picture, at most `PICTURE_SIZE`; None if it is none.

    Pictures: bytes of a JPEG or PNG file, filled up with zeros; [height, width], with 1 or 3 channels last or first.
    Pixels of other types than uint8 are stretched from their least to their highest value.
    """
    try:
        image = _from_file(row) if row.ndim == 1 and row.dtype == np.uint8 else _from_pixels(row)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError):
        return None
    if image is None:
        return None
    image.thumbnail(PICTURE_SIZE)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _from_file(row: Array) -> Image.Image:
    with Image.open(io.BytesIO(row.tobytes()), formats=("JPEG", "PNG")) as image:
        image.draft("RGB", PICTURE_SIZE)  # a large JPEG is decoded at a fraction of its size
        return image.convert("L" if image.mode in {"1", "L"} else "RGB")


def _from_pixels(row: Array) -> Image.Image | None:
    if row.dtype.kind not in "uif":
        return None
    pixels = row[0] if row.ndim == 4 and len(row) == 1 else row
    if pixels.ndim == 3 and pixels.shape[-1] not in _CHANNELS and pixels.shape[0] in _CHANNELS:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    channels = pixels.shape[2:] in ((), (3,))
    if pixels.ndim not in (2, 3) or not channels or min(pixels.shape[:2]) < _LEAST_SIDE:
        return None
    if pixels.dtype != np.uint8:
        values = np.nan_to_num(pixels.astype(np.float64), posinf=0.0, neginf=0.0)
        span = np.ptp(values) or 1.0
        pixels = np.round(255.0 * (values - values.min()) / span).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
