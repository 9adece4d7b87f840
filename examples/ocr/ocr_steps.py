"""The Python steps of the workflow: everything between the models that read text from pictures.

Pre- and post-processing follow PaddleOCR's, as the RapidOCR package does it, so that its models see what they were
trained on: pixels in OpenCV's order (blue, green, red), lines of text 48 pixels high.
"""

from __future__ import annotations

import cv2
import numpy as np
import pyclipper

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.steps import Array, Tensors, step

LINE_HEIGHT = 48  # pixels of a line that the recognition models were trained with
MIN_SIDE = 3  # pixels of the map: narrower regions are specks
SAME_LINE = 10  # pixels: boxes whose tops differ by less are in one line, read from left to right
GREY = 128  # what both models were padded with, zero once it is normalised
DILATION = np.ones((2, 2), np.uint8)

cv2.setNumThreads(1)  # a worker is one core


@step(inputs={"picture": ("uint8", (1, -1))}, outputs={"pixels": ("uint8", (1, -1, -1, 3))})
def decode(inputs: Tensors) -> Tensors:
    """The pixels of a JPEG or PNG file, given as its bytes; zeros after the file's end do not count."""
    pixels = cv2.imdecode(inputs["picture"][0], cv2.IMREAD_COLOR)
    if pixels is None:
        raise InvalidInputError("the bytes are no picture in JPEG or PNG")
    return {"pixels": pixels[np.newaxis]}


@step(
    inputs={"detect": ("uint8", (1, -1, -1)), "decode": ("uint8", (1, -1, -1, 3))},
    outputs={"lines": ("uint8", (-1, 48, -1, 3))},
)
def cut_lines(inputs: Tensors, *, threshold: float = 0.3, box_threshold: float = 0.5, unclip: float = 1.6) -> Tensors:
    """The lines of text in a picture, in reading order, each straightened and 48 pixels high.

    `detect`: for each pixel, 255 times the probability that it is text. Lines of one picture differ in length: columns
    of zeros at the right fill the shorter ones up, and a line itself has no zeros (`without_padding`).
    """
    text, pixels = inputs["detect"][0], inputs["decode"][0]
    mask = cv2.dilate((text > 255 * threshold).astype(np.uint8), DILATION)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [box for contour in contours if (box := _box(contour, text, 255 * box_threshold, unclip)) is not None]
    scale = np.array(pixels.shape[1::-1], np.float32) / np.array(text.shape[::-1], np.float32)
    corners = [_inside(np.round(box * scale), pixels) for box in boxes]
    lines = [_straightened(pixels, box) for box in _in_reading_order(corners) if min(_size(box)) > MIN_SIDE]
    width = max((line.shape[1] for line in lines), default=1)
    padded = [np.pad(np.maximum(line, 1), ((0, 0), (0, width - line.shape[1]), (0, 0))) for line in lines]
    return {"lines": np.stack(padded) if padded else np.zeros((0, LINE_HEIGHT, width, 3), np.uint8)}


@step(inputs={"line": ("uint8", (1, 48, -1, 3))}, outputs={"line": ("uint8", (1, 48, "width", 3))})
def thumbnail(inputs: Tensors, *, width: int = 192) -> Tensors:
    """A line as the classifier of upside-down lines takes it: narrower than `width` is padded, wider is squeezed."""
    line = without_padding(inputs["line"][0])
    if line.shape[1] > width:
        line = cv2.resize(line, (width, LINE_HEIGHT))
    return {"line": _padded(line, width)}


@step(
    inputs={"lines": ("uint8", (1, 48, -1, 3)), "classify": ("float32", (1, 2))},
    outputs={"line": ("uint8", (1, 48, -1, 3))},
)
def turn(inputs: Tensors, *, threshold: float = 0.9, width: int = 320) -> Tensors:
    """The line the right way up, padded to the shortest width that the recognition models know.

    `classify`: probabilities that the line stands upright and upside down.
    """
    line = without_padding(inputs["lines"][0])
    if inputs["classify"][0, 1] > threshold:
        line = line[::-1, ::-1]
    return {"line": _padded(line, max(width, line.shape[1]))}


@step(inputs={"characters": ("float32", (1, -1, 2))}, outputs={"text": ("uint8", (-1,))})
def spell(inputs: Tensors, *, threshold: float = 0.5) -> Tensors:
    """A line's text as UTF-8 bytes with a line break; nothing if the mean probability is below the threshold.

    `characters`: for each position the likeliest character's code point (0: none) and its probability. Equal ones side
    by side are one character (connectionist temporal classification).
    """
    codes, shares = inputs["characters"][0, :, 0].astype(np.int64), inputs["characters"][0, :, 1]
    kept = codes != 0
    kept[1:] &= codes[1:] != codes[:-1]
    line = "".join(map(chr, codes[kept])).strip()
    if not line or shares[kept].mean() < threshold:
        line = ""
    return {"text": np.frombuffer(f"{line}\n".encode() if line else b"", np.uint8)}


@step(inputs={"lines": ("uint8", (-1,))}, outputs={"text": ("uint8", (1, -1))})
def join(inputs: Tensors) -> Tensors:
    """The text of a picture as UTF-8 bytes: all its lines, without the last one's line break."""
    return {"text": inputs["lines"][np.newaxis, :-1].copy()}


def without_padding(line: Array) -> Array:
    """A line without the columns of zeros at its right."""
    return line[:, : max(1, np.count_nonzero(line[0].any(axis=-1)))]


def _padded(line: Array, width: int) -> Array:
    padded = np.full((1, LINE_HEIGHT, width, 3), GREY, np.uint8)
    padded[0, :, : line.shape[1]] = line
    return padded


def _box(contour: Array, text: Array, threshold: float, unclip: float) -> Array | None:
    """Corners [4, 2] of the region's box, grown to hold whole letters; None if it is too small or unlikely.

    The models are trained on regions that are shrunk by this factor of area and perimeter.
    """
    rectangle = cv2.minAreaRect(contour)
    if min(rectangle[1]) < MIN_SIDE:
        return None
    corners = _clockwise(cv2.boxPoints(rectangle))
    if _mean_inside(text, corners) < threshold:
        return None
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    area, length = cv2.contourArea(corners), cv2.arcLength(corners, closed=True)
    grown = offset.Execute(area * unclip / length)
    if len(grown) != 1:
        return None
    rectangle = cv2.minAreaRect(np.array(grown[0], np.float32))
    return _clockwise(cv2.boxPoints(rectangle)) if min(rectangle[1]) >= MIN_SIDE + 2 else None


def _mean_inside(text: Array, corners: Array) -> float:
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, np.array(text.shape[::-1]) - 1)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, np.array(text.shape[::-1]) - 1)
    mask = np.zeros((high[1] - low[1] + 1, high[0] - low[0] + 1), np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return float(cv2.mean(text[low[1] : high[1] + 1, low[0] : high[0] + 1], mask)[0])


def _clockwise(corners: Array) -> Array:
    """Corners from the top left, clockwise."""
    by_column = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_column[:2], by_column[2:]
    (top_left, bottom_left), (top_right, bottom_right) = (side[np.argsort(side[:, 1])] for side in (left, right))
    return np.array([top_left, top_right, bottom_right, bottom_left], np.float32)


def _inside(corners: Array, pixels: Array) -> Array:
    return np.clip(corners, 0, np.array(pixels.shape[1::-1]) - 1).astype(np.float32)


def _size(corners: Array) -> tuple[int, int]:
    """Width and height of a box, in whole pixels."""
    across = max(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[2] - corners[3]))
    down = max(np.linalg.norm(corners[0] - corners[3]), np.linalg.norm(corners[1] - corners[2]))
    return int(across), int(down)


def _in_reading_order(boxes: list[Array]) -> list[Array]:
    """Boxes from the top down, those of one line from left to right."""
    ordered = sorted(boxes, key=lambda box: box[0, 1])
    tops = np.array([box[0, 1] for box in ordered], np.float32)
    line = np.concatenate([[0], np.cumsum(np.diff(tops) >= SAME_LINE)]) if ordered else []
    return [ordered[at] for at in sorted(range(len(ordered)), key=lambda at: (line[at], ordered[at][0, 0]))]


def _straightened(pixels: Array, corners: Array) -> Array:
    """The quadrilateral of a picture as a rectangle 48 pixels high; upright ones are turned to lie."""
    width, height = _size(corners)
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(pixels, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE, flags=cv2.INTER_CUBIC)
    if height >= 1.5 * width:
        line = np.ascontiguousarray(np.rot90(line))
    return cv2.resize(line, (max(1, int(np.ceil(LINE_HEIGHT * line.shape[1] / line.shape[0]))), LINE_HEIGHT))
