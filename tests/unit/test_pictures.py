"""Pictures whose pixels Pillow would change without a word: refused with the reason, or read as they are."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from jellybean.errors import InputError
from jellybean.pictures import conversion_code, read_picture
from tests.support.made_inputs import png_bytes, tiff_bytes

MOST = 2**20
WIDE = np.array([[0, 256, 1000], [30000, 60000, 65535]], np.uint16)
COLOURS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(folder: Path, content: bytes) -> np.ndarray:
    (folder / "picture").write_bytes(content)
    return read_picture(folder / "picture", MOST).pixels


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000", "PPM"])
def test_grey_values_of_16_bits_stay(tmp_path: Path, kind: str) -> None:
    options = {"irreversible": False} if kind == "JPEG2000" else {}
    wide = np.tile(WIDE, (8, 8))
    found = read(tmp_path, saved(Image.fromarray(wide), kind, **options))
    assert (found.dtype, found.tolist()) == (np.uint16, wide.tolist())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (png_bytes(np.stack([WIDE] * 3, -1), 2), "16 bits a channel, of which Pillow reads 8"),
        (b"P6 1 1 65535\n" + bytes(6), "16 bits a channel"),
        (b"P3 1 1 4095\n1 300 4095\n", "12 bits a channel"),
        (b"P5 2 1 4095\n" + bytes(4), "has 4095 for white, which Pillow stretches to 65535"),
        (b"P2 2 1 100\n1 100\n", "has 100 for white, which Pillow stretches to 255"),
        (tiff_bytes(np.stack([WIDE] * 3, -1), ">"), "16 bits a channel"),
        (tiff_bytes(WIDE[..., None], "<", white_is_zero=True), "has 0 for white"),
        (saved(Image.fromarray(COLOURS), "PNG")[:45], "cannot be read as a picture"),
        (saved(Image.fromarray(COLOURS), "JPEG")[:-200], "cannot be read as a picture"),
        (b"", "is no picture"),
        (b"\x89PNG\r\n\x1a\n", "is no picture"),
    ],
    ids=[
        "PNG",
        "PPM",
        "plain PPM",
        "grey PPM",
        "plain grey PPM",
        "TIFF",
        "white",
        "cut PNG",
        "cut JPEG",
        "empty",
        "begin",
    ],
)
def test_what_would_enter_otherwise_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, content)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_of_several_pictures_none_is_taken(tmp_path: Path, kind: str) -> None:
    image = Image.fromarray(COLOURS)
    with pytest.raises(InputError, match="2 pictures, and a request takes one"):
        read(tmp_path, saved(image, kind, save_all=True, append_images=[image.rotate(180)]))


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGBA"), ("PNG", "LA"), ("PNG", "P"), ("TIFF", "RGBA"), ("GIF", "P")]
)
def test_transparent_pixels_are_refused_and_counted(tmp_path: Path, kind: str, mode: str) -> None:
    if mode == "P":
        image = Image.new("P", (3, 2), 1)
        image.putpalette([0, 0, 0, 10, 20, 30])
        content = saved(image, kind, transparency=1)
    else:
        content = saved(Image.new(mode, (3, 2)), kind)
    with pytest.raises(InputError, match="6 of 6 pixels are transparent"):
        read(tmp_path, content)


def test_a_picture_is_read_upright_and_that_is_said(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("PNG", "TIFF"):
        (tmp_path / "turned").write_bytes(saved(Image.fromarray(COLOURS), kind, exif=exif))
        picture = read_picture(tmp_path / "turned", MOST)
        assert picture.pixels.tolist() == np.rot90(COLOURS, -1).tolist()
        assert picture.note == "turned upright, as its orientation 6 says"
    code = conversion_code(tmp_path / "turned", MOST)
    assert eval(code, {"np": np, "io": io, "Image": Image, "ImageOps": ImageOps}).tolist() == (
        np.rot90(COLOURS, -1).tolist()
    )


def test_a_picture_that_does_not_fit_into_memory_is_not_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 9000, 9000, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with pytest.raises(InputError, match=r"9000 x 9000 pixels take 81,000,000 bytes, more than the 1,048,576"):
        read(tmp_path, content)


def test_numbers_of_32_bits_and_signs_stay(tmp_path: Path) -> None:
    for dtype, values in (("u4", [0, 1, 2**32 - 1]), ("i4", [-5, 0, 2**31 - 1]), ("i1", [-128, 0, 127])):
        pixels = np.array([values], dtype)
        found = read(tmp_path, tiff_bytes(pixels[..., None], "<"))
        assert (found.dtype, found.tolist()) == (pixels.dtype, pixels.tolist())


@pytest.mark.parametrize(
    "content",
    [
        saved(Image.fromarray(WIDE), "PPM"),
        saved(Image.fromarray(WIDE), "PNG"),
        tiff_bytes(WIDE[..., None], ">"),
        tiff_bytes(np.array([[[2**32 - 1], [7]]], np.uint32), "<"),
        tiff_bytes(np.array([[[-3], [7]]], np.int8), "<"),
        saved(Image.fromarray(COLOURS), "BMP"),
    ],
    ids=["PPM", "PNG", "TIFF of 16 bits", "TIFF of 32 bits", "TIFF with signs", "BMP"],
)
def test_the_code_that_a_refusal_advises_reads_the_same_pixels(tmp_path: Path, content: bytes) -> None:
    found = read(tmp_path, content)
    code = conversion_code(tmp_path / "picture", MOST)
    made = eval(code, {"np": np, "io": io, "Image": Image, "ImageOps": ImageOps})
    assert (made.dtype, made.tolist()) == (found.dtype, found.tolist())


@pytest.mark.parametrize(("bits", "clear"), [(1, 1), (2, 2), (4, 9), (8, 200), (16, 60000)])
def test_the_grey_value_that_is_transparent_is_told_at_each_depth(tmp_path: Path, bits: int, clear: int) -> None:
    """Pillow compares it with stretched values, and with none of 16 bits."""
    pixels = np.array([[[0], [clear], [clear]]], np.uint16 if bits == 16 else np.uint8)
    with pytest.raises(InputError, match="2 of 3 pixels are transparent"):
        read(tmp_path, png_bytes(pixels, 0, bits=bits, clear=clear))
    opaque = read(tmp_path, png_bytes(pixels[:, :1], 0, bits=bits, clear=clear))
    assert opaque.tolist() == [[0]]


@pytest.mark.parametrize(
    ("channels", "photometric", "reason"),
    [
        (2, 1, "has 2 channels, of which Pillow reads 1|is no picture, or of a kind"),  # Pillow 12 opens none
        (4, 2, "has 4 channels, of which Pillow reads 3"),
        (5, 2, "has 5 channels, of which Pillow reads 3"),
        (4, 5, "has colours as CMYK"),
        (3, 6, "has colours as YCbCr|image file is truncated"),  # Pillow 12 does not convert what is not compressed
        (3, 8, "has colours as LAB"),
    ],
)
def test_channels_that_are_no_grey_or_colours_are_refused(
    tmp_path: Path, channels: int, photometric: int, reason: str
) -> None:
    pixels = np.arange(6 * channels, dtype=np.uint8).reshape(2, 3, channels)
    extra = [0] * (channels - (3 if photometric == 2 else 1)) if photometric < 5 else []
    with pytest.raises(InputError, match=reason):
        read(tmp_path, tiff_bytes(pixels, "<", photometric=photometric, extra=extra))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "JPEG2000"])
def test_colours_for_print_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match=r"has colours as CMYK, and programs turn them .* in different ways"):
        read(tmp_path, saved(Image.fromarray(np.tile(COLOURS, (8, 8, 1))).convert("CMYK"), kind))


@pytest.mark.parametrize(
    "content", [b"P4 8 1\n\x55", b"P5 2 1 255\n\1\2", b"P6 1 1 255\n\1\2\3", b"Pf\n1 1\n-1\n" + bytes(4)]
)
def test_of_pictures_one_after_the_other_none_is_taken(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content).size
    assert read(tmp_path, content + b"\n").size
    with pytest.raises(InputError, match="has several pictures, and a request takes one"):
        read(tmp_path, content + content)


def test_a_preview_behind_a_picture_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    image = Image.fromarray(COLOURS)
    (tmp_path / "x").write_bytes(saved(image, "MPO", save_all=True, append_images=[image.rotate(180)]))
    assert read_picture(tmp_path / "x", MOST).note == "the first of its 2 pictures"


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32], ids=lambda dtype: dtype.__name__)
def test_a_grey_picture_that_is_mapped_into_memory_is_turned_with_its_values(
    tmp_path: Path, dtype: type, orientation: int
) -> None:
    """Pillow opens a TIFF by its name with width and height exchanged, and the rows of its values mixed up."""
    grey = np.arange(6, dtype=dtype).reshape(2, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        2: grey[:, ::-1],
        3: grey[::-1, ::-1],
        4: grey[::-1],
        5: grey.T,
        6: np.rot90(grey, -1),
        7: grey[::-1, ::-1].T,
        8: np.rot90(grey),
    }
    found = read(tmp_path, saved(Image.fromarray(grey), "TIFF", exif=exif))
    assert (found.dtype, found.tolist()) == (grey.dtype, turned[orientation].tolist())


def test_values_of_16_bits_with_a_sign_keep_their_type(tmp_path: Path) -> None:
    values = np.array([[-5, 300, -(2**15)]], np.int16)
    for order in "<>":
        found = read(tmp_path, tiff_bytes(values[..., None], order))
        assert (found.dtype, found.tolist()) == (np.int16, values.tolist())


def test_pixels_that_a_file_lacks_are_not_black(tmp_path: Path) -> None:
    whole = tiff_bytes(np.full((4, 2, 1), 9, np.uint8), "<")
    rows_a_strip = struct.pack("<HHII", 278, 4, 1, 4)
    half = whole.replace(rows_a_strip, struct.pack("<HHII", 278, 4, 1, 2))
    with pytest.raises(InputError, match="has 1 of the 2 strips of its pixels: copy or save it again"):
        read(tmp_path, half)


def test_colours_that_a_palette_lacks_are_not_black(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 3, 0, 0, 0))
    palette, end = chunk(b"PLTE", bytes([0, 0, 0, 10, 20, 30])), chunk(b"IDAT", zlib.compress(b"\0\1\5"))
    end += chunk(b"IEND", b"")
    with pytest.raises(InputError, match="has pixels of colour 5, and its palette has 2 colours: save it again"):
        read(tmp_path, head + palette + end)
    with pytest.raises(InputError, match="its palette has 0 colours"):
        read(tmp_path, head + end)
