"""Read pictures from files: each pixel with the value that is stored, or a refusal with the reason.

Pillow converts much without a word: it cuts 16 bits to 8, leaves out transparency, and reads the first of several
pictures. What a model is given then differs from the file, so such pictures are refused here.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from jellybean.errors import InputError
from jellybean_agent import Array, describe_error, plain_array

_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")  # depths are known of these
_SEVERAL_ARE_ONE = ("MPO",)  # what Pillow calls a JPEG with a preview behind it
# Bits of grey values that are kept as they are; all others have 8.
_MOST_BITS = {"I": 32, "F": 32, "I;16": 16, "I;16L": 16, "I;16B": 16, "I;16N": 16}
_GREY = ("1", "L", "LA", "La")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_READ_MODES = frozenset({*_MOST_BITS, *_GREY, *_ALPHA, "P", "RGB"})  # of which each channel is kept, or checked
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLES, _SAMPLE_FORMAT = 258, 262, 277, 339  # tags of TIFF
_WIDTH, _HEIGHT, _ROWS_A_STRIP, _STRIPS, _PLANES_APART = 256, 257, 278, 273, 284
_TILE_WIDTH, _TILE_HEIGHT, _TILES = 322, 323, 324
# Mode, bits and number format of a TIFF whose bits Pillow gives as numbers of another sign -> their dtype.
_TIFF_DTYPES = {("I", 32, 1): np.uint32, ("L", 8, 2): np.int8}
_PPM_NEXT = 64  # bytes behind a PPM in which the next one begins
_BOX_BYTES = 2**16  # begin of a file in which AVIF and JPEG 2000 say how many bits a channel has
# What Pillow's decoders raise for damaged files.
_DAMAGED = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, ArithmeticError, AttributeError),
    *(AssertionError, RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture's pixels: [height, width] if it is grey, else [height, width, 3].

    `note`: what was done to the pixels that a user may not expect; empty if nothing was.
    """

    pixels: Array
    note: str = ""


def read_picture(path: Path, most_bytes: int) -> Picture:
    """Read a picture, upright as viewers show it: uint8, or the file's own type for grey values of more bits.

    InputError if the file is none, is damaged, has more than `most_bytes` bytes of pixels, or has what the tensor of
    one picture lacks: more bits in colour, transparency, several pictures.
    """
    with _opened(path) as image:
        _check_size(path, image, most_bytes)
        _check_whole(path, image)
        _check_channels(path, image)
        _check_depth(path, image)
        _check_white(path, image)
        frames = _check_single(path, image)
        clear = _clear_grey(image)
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)  # which may load the pixels
        image.load()  # which turns a TIFF and removes its orientation
        _check_palette(path, image)
        _check_opaque(path, image, clear)
        upright = ImageOps.exif_transpose(image)
        notes = [f"the first of its {frames} pictures"] if frames > 1 else []
        notes += [f"turned upright, as its orientation {orientation} says"] if orientation in range(2, 9) else []
        return Picture(_pixels(image, upright), "; ".join(notes))


def conversion_code(path: Path, most_bytes: int) -> str:
    """The Python expression of the pixels that `read_picture` reads, for Pillow's `Image` and `ImageOps`, and `io`."""
    dtype = read_picture(path, most_bytes).pixels.dtype
    with _opened(path) as image:
        file = repr(str(path))
        if image.format == "TIFF":  # not by its name: see `_opened`
            file = f"io.BytesIO(np.fromfile({file}, np.uint8))"
        opened = f"ImageOps.exif_transpose(Image.open({file}))"
        converted = opened if image.mode in _MOST_BITS else f"{opened}.convert({_mode(image)!r})"
    return f"np.asarray({converted})" if dtype == np.uint8 else f"np.asarray({converted}).astype(np.{dtype})"


def _mode(image: Image.Image) -> str:
    return "L" if image.mode in _GREY else "RGB"


def _pixels(image: Image.Image, upright: Image.Image) -> Array:
    values = np.asarray(upright if image.mode in _MOST_BITS else upright.convert(_mode(image)))
    if image.format == "TIFF" and (dtype := _TIFF_DTYPES.get((image.mode, *_bits_and_format(image)))) is not None:
        return values.view(dtype)
    if image.format == "TIFF" and (image.mode, *_bits_and_format(image)) == ("I", 16, 2):
        return values.astype(np.int16)  # what the file has: Pillow gives it as 32 bits
    if image.format == "PPM" and image.mode == "I":
        return values.astype(np.uint16)  # what the file has: Pillow gives 16 bits of it as 32
    return plain_array(values)


def _bits_and_format(image: Any) -> tuple[int, int]:
    """Bits of the first channel of a TIFF, and the format of its numbers: 1 unsigned, 2 signed, 3 float."""
    bits, number_format = (image.tag_v2.get(tag, (1,)) for tag in (_BITS_PER_SAMPLE, _SAMPLE_FORMAT))
    return int(bits[0]), int(number_format[0])


def _check_size(path: Path, image: Image.Image, most_bytes: int) -> None:
    """Before it is decoded: a small file can hold a picture that does not fit into memory."""
    pixel_bytes = 1 if image.mode in _GREY else _MOST_BITS.get(image.mode, 24) // 8
    size = image.width * image.height * pixel_bytes
    if size > most_bytes:
        raise InputError(
            f"{path}: {image.width} x {image.height} pixels take {size:,} bytes, more than the {most_bytes:,} that an "
            "input may have: scale it down"
        )


def _check_whole(path: Path, image: Any) -> None:
    """Pillow leaves black what the strips or tiles of a TIFF do not cover."""
    if image.format != "TIFF":
        return
    tags = image.tag_v2
    width, height = tags[_WIDTH], tags[_HEIGHT]
    if _TILES in tags:
        what, stated = "tiles", len(tags[_TILES])
        wanted = -(-width // tags[_TILE_WIDTH]) * -(-height // tags[_TILE_HEIGHT])
    else:
        what, stated = "strips", len(tags.get(_STRIPS, ()))
        wanted = -(-height // min(height, tags.get(_ROWS_A_STRIP, height)))
    wanted *= int(tags.get(_SAMPLES, 1)) if tags.get(_PLANES_APART, 1) == 2 else 1
    if stated < wanted:
        raise InputError(f"{path} has {stated} of the {wanted} {what} of its pixels: copy or save it again")


def _check_palette(path: Path, image: Image.Image) -> None:
    """Pillow gives black for numbers of colours that a palette does not have."""
    if image.mode not in ("P", "PA") or (colours := image.getpalette("RGB")) is None:
        return
    largest, count = int(np.asarray(image.getchannel(0) if image.mode == "PA" else image).max()), len(colours) // 3
    if largest >= count:
        raise InputError(f"{path} has pixels of colour {largest}, and its palette has {count} colours: save it again")


def _check_channels(path: Path, image: Any) -> None:
    """Colours of another kind are no exact red, green and blue, and Pillow leaves out what it has no channel for."""
    channels = image.getbands()
    samples = int(image.tag_v2.get(_SAMPLES, 1)) if image.format == "TIFF" else len(channels)
    read = sum(channel != "X" for channel in channels)
    if samples > read:
        raise InputError(
            f"{path} has {samples} channels, of which Pillow reads {read}: save it without the others, or its pixels "
            "with numpy.save"
        )
    if image.mode not in _READ_MODES:
        raise InputError(
            f"{path} has colours as {image.mode}, and programs turn them into red, green and blue in different ways: "
            "save it as RGB, with the program that knows its colours"
        )


def _check_depth(path: Path, image: Image.Image) -> None:
    bits, most = _bits(path, image), _MOST_BITS.get(image.mode, 8)
    if bits > most:
        raise InputError(
            f"{path} has {bits} bits a channel, of which Pillow reads {most}: save it with {most} bits, or its pixels "
            "with numpy.save"
        )


def _check_white(path: Path, image: Any) -> None:
    """Pillow inverts values of 8 bits of a TIFF whose white is 0, and no others; it stretches those of a PPM."""
    if image.format == "PPM" and (white := max(_whole_arguments(image), default=255)) not in (*range(2), 255, 65535):
        raise InputError(
            f"{path} has {white} for white, which Pillow stretches to {255 if white < 255 else 65535}: save its pixels "
            "with numpy.save"
        )
    if image.format == "TIFF" and image.mode in _MOST_BITS and image.tag_v2.get(_PHOTOMETRIC) == 0:
        raise InputError(f"{path} has 0 for white, of more than 8 bits: save its pixels with numpy.save")


def _bits(path: Path, image: Any) -> int:
    """Bits of a channel in the file; 8 for less."""
    if image.format == "TIFF":
        return max((8, *(int(bits) for bits in image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))))
    if image.format in ("AVIF", "JPEG2000"):
        with path.open("rb") as file:
            return _bits_of_boxes(image.format, file.read(_BOX_BYTES))
    if image.format == "PPM":
        return max((8, *(value.bit_length() for value in _whole_arguments(image))))
    return 16 if image.format == "PNG" and any(";16" in str(value) for value in _decoder_arguments(image)) else 8


def _decoder_arguments(image: Any) -> tuple[Any, ...]:
    """What Pillow gives its decoder: the form of the file's values, and the white of a PPM."""
    arguments = image.tile[0].args if image.tile else ()
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _whole_arguments(image: Any) -> list[int]:
    return [value for value in _decoder_arguments(image) if isinstance(value, int)]


def _bits_of_boxes(kind: str, begin: bytes) -> int:
    """Bits of a channel, as AVIF (av1C) and JPEG 2000 (SIZ) write them at the begin of a file."""
    if kind == "AVIF":
        at = begin.find(b"av1C") + len(b"av1C") + 2
        flags = begin[at] if len(b"av1C") + 2 <= at < len(begin) else 0
        return (12 if flags & 0x20 else 10) if flags & 0x40 else 8
    at = begin.find(b"\xff\x4f\xff\x51")
    count = int.from_bytes(begin[at + 40 : at + 42]) if at >= 0 else 0
    return max((8, *((size & 0x7F) + 1 for size in begin[at + 42 : at + 42 + 3 * count : 3])))


def _check_single(path: Path, image: Any) -> int:
    """The number of pictures in a file, of which the first is read: more than 1 for a picture with a preview."""
    frames = int(getattr(image, "n_frames", 1))
    if (frames > 1 and image.format not in _SEVERAL_ARE_ONE) or _has_next_ppm(path, image):
        count = frames if frames > 1 else "several"
        raise InputError(f"{path} has {count} pictures, and a request takes one: save the one that is meant as a PNG")
    return frames


def _has_next_ppm(path: Path, image: Any) -> bool:
    """True if another picture follows the first of a binary PPM file, as its format allows; Pillow reads one."""
    if image.format != "PPM" or len(image.tile) != 1 or image.tile[0].codec_name != "raw":
        return False
    row_bits = image.width * {"1": 1, "I": 16, "I;16B": 16, "F": 32, "RGB": 24}.get(image.mode, 8)
    with path.open("rb") as file:
        file.seek(image.tile[0].offset + image.height * -(-row_bits // 8))
        return file.read(_PPM_NEXT).lstrip()[:1] == b"P"


def _clear_grey(image: Any) -> int | None:
    """The grey value of a PNG that is transparent, among its pixels' values; None without one.

    Pillow compares it with values that it has stretched to 8 bits, and with none of 16.
    """
    value = image.info.get("transparency") if image.format == "PNG" else None
    if not isinstance(value, int) or image.mode not in ("L", "I;16"):
        return None
    if image.mode == "I;16":
        return value
    form = str(_decoder_arguments(image)[0]).partition(";")[2]
    white: int = 2 ** int(form or 8) - 1
    return (value & white) * (255 // white)


def _check_opaque(path: Path, image: Image.Image, clear: int | None) -> None:
    if clear is not None:
        is_clear = np.asarray(image) == clear
    elif image.mode in _ALPHA or image.has_transparency_data:
        is_clear = np.asarray(image.convert("RGBA").getchannel("A")) != 255
    else:
        return
    if (count := int(np.count_nonzero(is_clear))) > 0:
        raise InputError(
            f"{path}: {count} of {is_clear.size} pixels are transparent, which a tensor of colours cannot say: put it "
            "on a background and save it without transparency"
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A picture's file, by a stream: one that Pillow opens by its name it maps into memory, and maps a TIFF that is to
    be turned with width and height exchanged.
    """
    with _readable(path), path.open("rb") as file, Image.open(file, formats=_FORMATS) as image:
        yield image


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # sizes are checked here
            yield
    except (InputError, FileNotFoundError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(
            f"{path} is no picture, or of a kind that is not read: save it as {', '.join(_FORMATS[:2])} or its pixels "
            "with numpy.save"
        ) from error
    except _DAMAGED as error:
        raise InputError(f"{path}: cannot be read as a picture: {describe_error(error)}") from error
