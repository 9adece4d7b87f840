"""Photographs of print, drawn from a seed: pages, receipts, labels and signs, with their words.

Fonts are those in matplotlib's wheel. Every sheet is printed, laid on a background, seen at an angle, lit from one
side, blurred, covered with noise and saved as JPEG; one in twenty lies upside down.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

LONG_SIDE = 960  # pixels of every picture
UPSIDE_DOWN = 0.05  # share of pictures
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
)
WORDS = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").split()

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Line:
    """Text with the place of its left end, as shares of the sheet's width and height, and its height in pixels."""

    text: str
    x: float
    y: float
    height: int


def pictures(count: int, seed: int) -> tuple[list[bytes], list[str]]:
    """JPEG files and the text on each, lines from the top down."""
    rng = np.random.default_rng(seed)
    kinds = (_page, _receipt, _label, _sign)
    drawn = [picture(kinds[index % len(kinds)](rng), rng) for index in range(count)]
    return [file for file, _ in drawn], [text for _, text in drawn]


def picture(sheet: tuple[tuple[int, int], list[Line]], rng: np.random.Generator) -> tuple[bytes, str]:
    """A photograph of one sheet as a JPEG file, and the sheet's text."""
    size, lines = sheet
    photograph = _photographed(_printed(size, lines, rng), rng)
    _, file = cv2.imencode(".jpg", photograph, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(70, 93))])
    return file.tobytes(), "\n".join(line.text for line in lines)


def as_rows(files: list[bytes]) -> Pixels:
    """Byte strings as rows of one array, zeros after the shorter ones."""
    rows = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, file in zip(rows, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    return rows


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(WORDS[at] for at in rng.integers(len(WORDS), size=count))


def _price(rng: np.random.Generator) -> str:
    return f"{rng.integers(1, 90)}.{rng.integers(100):02d}"


def _page(rng: np.random.Generator) -> tuple[tuple[int, int], list[Line]]:
    height, count = int(rng.integers(13, 26)), int(rng.integers(6, 14))
    texts = [_words(rng, int(rng.integers(2, 6))).capitalize() for _ in range(count)]
    return (720, LONG_SIDE), [Line(text, 0.06, (row + 0.5) / count, height) for row, text in enumerate(texts)]


def _receipt(rng: np.random.Generator) -> tuple[tuple[int, int], list[Line]]:
    height, count = int(rng.integers(15, 27)), int(rng.integers(3, 8))
    lines = [Line(_words(rng, 2).upper(), 0.2, 0.06, height + 6)]
    for row in range(count):
        y = 0.18 + 0.68 * row / count
        lines += [Line(_words(rng, int(rng.integers(1, 3))), 0.06, y, height), Line(_price(rng), 0.74, y, height)]
    return (640, LONG_SIDE), [*lines, Line("TOTAL", 0.06, 0.9, height + 4), Line(_price(rng), 0.72, 0.9, height + 4)]


def _label(rng: np.random.Generator) -> tuple[tuple[int, int], list[Line]]:
    count = int(rng.integers(2, 6))
    texts = [_words(rng, int(rng.integers(1, 4))) for _ in range(count - 1)]
    texts.append(f"{rng.integers(100, 999)}-{rng.integers(1000, 9999)} {_price(rng)}")
    lines = [Line(text, 0.08, (row + 0.5) / count, int(rng.integers(18, 48))) for row, text in enumerate(texts)]
    return (LONG_SIDE, 680), lines


def _sign(rng: np.random.Generator) -> tuple[tuple[int, int], list[Line]]:
    count = int(rng.integers(1, 4))
    texts = [_words(rng, int(rng.integers(1, 3))).upper() for _ in range(count)]
    lines = [Line(text, 0.1, (row + 0.6) / (count + 0.2), int(rng.integers(36, 96))) for row, text in enumerate(texts)]
    return (LONG_SIDE, 720), lines


def _printed(size: tuple[int, int], lines: list[Line], rng: np.random.Generator) -> Floats:
    """The sheet, [height, width, 3], 0..255: dark on light, one in four light on dark."""
    font = Path(matplotlib.get_data_path()) / f"fonts/ttf/{FONTS[rng.integers(len(FONTS))]}.ttf"
    ink = Image.new("L", size, 0)
    draw = ImageDraw.Draw(ink)
    for line in lines:
        room, height = (1 - line.x) * size[0] - 12, line.height
        while ImageFont.truetype(str(font), height).getlength(line.text) > room:
            height -= 1
        draw.text((line.x * size[0], line.y * size[1]), line.text, 255, ImageFont.truetype(str(font), height), "lm")
    light, dark = rng.uniform(150, 255, 3), rng.uniform(0, 80, 3)
    paint, sheet = (light, dark) if rng.random() < 0.25 else (dark, light)
    share = np.asarray(ink, np.float32)[..., None] / 255
    return (share * paint + (1 - share) * sheet).astype(np.float32)


def _photographed(sheet: Floats, rng: np.random.Generator) -> Pixels:
    """The sheet on a background, turned, in perspective, unevenly lit, blurred and noisy."""
    height, width = sheet.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    centre = np.array([width, height], np.float32) / 2
    angle = np.deg2rad(rng.normal(0, 3)) + (np.pi if rng.random() < UPSIDE_DOWN else 0.0)
    turned = (corners - centre) @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    target = centre + 0.9 * turned + rng.uniform(-0.03, 0.03, (4, 2)) * [width, height]
    matrix = cv2.getPerspectiveTransform(corners, target.astype(np.float32))
    colours = rng.uniform(40, 200, (6, 8, 3)).astype(np.float32)
    background = cv2.resize(colours, (width, height), interpolation=cv2.INTER_CUBIC)
    mask = cv2.warpPerspective(np.ones((height, width, 1), np.float32), matrix, (width, height))[..., None]
    scene = mask * cv2.warpPerspective(sheet, matrix, (width, height)) + (1 - mask) * background
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    direction = rng.uniform(0, 2 * np.pi)
    light = 0.9 + rng.uniform(0, 0.35) * (np.cos(direction) * x + np.sin(direction) * y)
    scene = cv2.GaussianBlur(scene * light[..., None].astype(np.float32), (0, 0), rng.uniform(0.3, 2.0))
    return np.clip(scene + rng.normal(0, rng.uniform(2, 22), scene.shape), 0, 255).astype(np.uint8)
