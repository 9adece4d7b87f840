"""Input files and values from a seeded generator, each with what a model must be given, by numpy and Pillow alone.

`expected` None: there is no tensor that says the same, so it must be refused. What can be taken must be taken, so that
refusing everything is no way to pass.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jellybean_agent import WIRE_DTYPES

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
_UNSERVED = ("c8", "c16", "g", "M8[s]", "m8[D]", "U3", "S2", [("a", "<f4"), ("b", "<i2")])
_LOSSLESS = ("png", "tiff", "bmp", "ppm")  # formats from which the pixels come back as they were written


@dataclass(frozen=True)
class MadeInput:
    """`reference`: as `jellybean infer --input` takes it, behind SOURCE=."""

    what: str
    reference: str
    expected: Array | None


def made_inputs(folder: Path, seed: int, count: int) -> Iterator[MadeInput]:
    """`count` inputs in a folder, of each kind in turn."""
    kinds: tuple[Callable[[Path, Generator], MadeInput], ...] = (
        _array,
        _grey_or_colour,
        _array,
        _wide_tiff,
        _literal,
        _png,
        _small_grey_png,
        _many_channels,
        _several_in_one,
    )
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        yield kinds[number % len(kinds)](folder / f"{number} #[{number}]%", generator)


def _values(generator: Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Values of all bits, the limits among them."""
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(bool)
    found = np.frombuffer(generator.bytes(size), dtype).reshape(shape).copy()
    if dtype.kind in "iu" and found.size > 1:
        found.flat[0], found.flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return found


def _array(path: Path, generator: Generator) -> MadeInput:
    """A .npy or .npz file: any dtype, byte order, order of axes, shape and version of the header."""
    path.mkdir()
    is_served = generator.random() < 0.8
    names = [*WIRE_DTYPES] if is_served else [*_UNSERVED]
    order = str(generator.choice(["<", ">"]))
    dtype = np.dtype(names[generator.integers(len(names))]).newbyteorder(order)
    shape = tuple(
        int(size) for size in generator.choice([0, 1, 2, 3], generator.integers(0, 5), p=[0.1, 0.3, 0.3, 0.3])
    )
    values = np.zeros(shape, dtype)
    if is_served:
        values = _values(generator, np.dtype(dtype.name), shape).astype(dtype)
    if generator.random() < 0.3:
        values = np.asfortranarray(values)
    form = generator.integers(3)
    if form == 0:
        file, reference = path / "x.npy", f"{path}/x.npy"
        with file.open("wb") as stream:
            version = [(1, 0), (2, 0), (3, 0)][generator.integers(3)]
            np.lib.format.write_array(stream, values, version=version, allow_pickle=False)
    else:
        file, name = path / "x.npz", str(generator.choice(["x", "file", "self", "a/b", "x[0]", "a.npy", "ü", "#1"]))
        with file.open("wb") as stream:
            (np.savez if form == 1 else np.savez_compressed)(
                stream, **({name: values} if name != "file" else {"g": values})
            )
        reference = f"{file}#{name if name != 'file' else 'g'}"
    expected = values.astype(dtype.newbyteorder("=")) if is_served and values.ndim else None
    if expected is not None and len(values) > 1 and generator.random() < 0.3 and not reference.endswith("]"):
        row = int(generator.integers(len(values)))
        reference, expected = f"{reference}[{row}]", expected[row : row + 1]
    return MadeInput(f"{dtype.str} {shape} {values.flags.f_contiguous} {reference}", reference, expected)


def _grey_or_colour(path: Path, generator: Generator) -> MadeInput:
    """A picture of 8 bits or less, or of grey values of 16 or 32, in a format that keeps its pixels."""
    kind = str(generator.choice([*_LOSSLESS]))
    height, width = (int(size) for size in generator.integers(1, 6, 2))
    modes = {"ppm": ["L", "RGB", "1"], "bmp": ["L", "RGB", "1"], "png": ["L", "RGB", "1", "P", "LA", "RGBA", "I;16"]}
    mode = str(generator.choice(modes.get(kind, ["L", "RGB", "1", "LA", "RGBA", "I;16", "I", "F"])))
    channels = {"RGB": (3,), "LA": (2,), "RGBA": (4,)}.get(mode, ())
    dtype = np.dtype({"I;16": "u2", "I": "i4", "F": "f4"}.get(mode, "u1"))
    pixels = _values(generator, dtype, (height, width, *channels))
    if mode == "1":
        image = Image.fromarray((pixels > 127).astype(np.uint8) * 255).convert("1", dither=Image.Dither.NONE)
        expected: Array | None = (pixels > 127).astype(np.uint8) * 255
    elif mode == "P":
        palette = generator.integers(0, 256, (256, 3), np.uint8)
        image = Image.fromarray(pixels).convert("P")
        image.putpalette(palette.tobytes())
        expected = palette[pixels]
    else:
        is_opaque = bool(generator.integers(2))
        if mode in ("LA", "RGBA"):
            pixels[..., -1] = 255
            pixels[0, 0, -1] = 255 if is_opaque else 254
        image = Image.fromarray(pixels)
        colours = pixels[..., 0] if mode == "LA" else pixels[..., :3] if mode == "RGBA" else pixels
        expected = colours if mode not in ("LA", "RGBA") or is_opaque else None
    options: dict[str, Any] = {}
    if kind in ("png", "tiff") and generator.random() < 0.2:
        options = {"save_all": True, "append_images": [image.copy(), image.rotate(180)]}
        expected = None
    elif kind == "png" and generator.random() < 0.3:
        orientation = int(generator.integers(1, 9))
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
        expected = None if expected is None else _upright(expected, orientation)
    file = path.with_suffix(f".{kind}")
    image.save(file, **options)
    if kind in ("png", "ppm") and generator.random() < 0.15:
        content = file.read_bytes()
        file.write_bytes(content[: int(generator.integers(1, min(20, len(content))))])
        expected = None
    return MadeInput(f"{kind} {mode} {pixels.shape} {options}", str(file), None if expected is None else expected[None])


def _upright(pixels: Array, orientation: int) -> Array:
    """A picture as a viewer shows it, by the meaning of the eight orientations."""
    turned = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, -1),
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(pixels, 1),
    }
    return turned[orientation]


def _wide_tiff(path: Path, generator: Generator) -> MadeInput:
    """An uncompressed TIFF: any width and sign of its numbers, either byte order, grey or colour."""
    dtype = np.dtype(str(generator.choice(["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"])))
    channels = int(generator.choice([1, 1, 1, 3]))
    order, height, width = str(generator.choice(["<", ">"])), *(int(size) for size in generator.integers(1, 5, 2))
    pixels = _values(generator, dtype, (height, width, channels))
    path.with_suffix(".tif").write_bytes(tiff_bytes(pixels, order))
    # Pillow has no mode for these, and none for big-endian numbers of 32 bits without a sign.
    lacks = (
        (channels == 3 and dtype != np.uint8)
        or dtype in (np.float16, np.float64)
        or (dtype == np.uint32 and order == ">")
    )
    expected = None if lacks else pixels[None] if channels == 3 else pixels[None, ..., 0]
    return MadeInput(f"tiff {order}{dtype.name} {pixels.shape}", f"{path}.tif".replace(path.name, path.stem), expected)


def tiff_bytes(
    pixels: Array, order: str, *, white_is_zero: bool = False, photometric: int | None = None, extra: Sequence[int] = ()
) -> bytes:
    """A TIFF of [height, width, channels] in one strip. `order`: `<` or `>`.

    `photometric`: what the channels are; by their number unless given. `extra`: what each further one is: 0
    unspecified, 1 and 2 alpha.
    """
    height, width, channels = pixels.shape
    number_format = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    data = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    if photometric is None:
        photometric = 2 if channels == 3 else 0 if white_is_zero else 1
    fields: dict[int, tuple[int, list[int]]] = {  # tag -> type (3: 16 bits, 4: 32 bits) and values
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [8 * pixels.dtype.itemsize] * channels),
        259: (3, [1]),
        262: (3, [photometric]),
        273: (4, [0]),
        277: (3, [channels]),
        278: (4, [height]),
        279: (4, [len(data)]),
        **({338: (3, [*extra])} if extra else {}),
        339: (3, [number_format] * channels),
    }
    begin = 8 + 2 + 12 * len(fields) + 4
    behind = b""
    entries = b""
    for tag, (kind, values) in fields.items():
        packed = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(packed) > 4:
            place, behind = begin + len(behind), behind + packed
            packed = struct.pack(f"{order}I", place)
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    strip = struct.pack(f"{order}HHII", 273, 4, 1, begin + len(behind))
    entries = entries.replace(struct.pack(f"{order}HHII", 273, 4, 1, 0), strip)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(fields))
    return head + entries + struct.pack(f"{order}I", 0) + behind + data


def _png(path: Path, generator: Generator) -> MadeInput:
    """A PNG written by hand: 8 or 16 bits a channel, of each colour type but palettes."""
    colour_type, channels = [(0, 1), (2, 3), (4, 2), (6, 4)][generator.integers(4)]
    dtype = np.dtype(str(generator.choice(["u1", "u2"])))
    height, width = (int(size) for size in generator.integers(1, 5, 2))
    pixels = _values(generator, dtype, (height, width, channels))
    if channels in (2, 4):
        pixels[..., -1] = np.iinfo(dtype).max
    path.with_suffix(".png").write_bytes(png_bytes(pixels, colour_type))
    is_kept = dtype == np.uint8 or channels == 1  # Pillow cuts colours of 16 bits to 8
    colours = pixels[..., 0] if channels < 3 else pixels[..., :3]
    return MadeInput(
        f"png {colour_type} {dtype.name}", str(path.with_suffix(".png")), colours[None] if is_kept else None
    )


def _small_grey_png(path: Path, generator: Generator) -> MadeInput:
    """A grey PNG of 1 to 16 bits, one value of which may be transparent, which may occur or not."""
    bits = int(generator.choice([1, 2, 4, 8, 16]))
    dtype, white = np.dtype("u2" if bits == 16 else "u1"), 2**bits - 1
    pixels = generator.integers(0, white + 1, (*generator.integers(1, 6, 2), 1)).astype(dtype)
    clear = int(generator.integers(0, white + 1)) if generator.random() < 0.6 else None
    path.with_suffix(".png").write_bytes(png_bytes(pixels, 0, bits=bits, clear=clear))
    is_opaque = clear is None or not (pixels == clear).any()
    shown = pixels[None, ..., 0] if bits > 4 else pixels[None, ..., 0] * (255 // white)
    what = f"png of {bits} bits, {clear} transparent, {pixels.ravel().tolist()}"
    return MadeInput(what, str(path.with_suffix(".png")), shown if is_opaque else None)


def _many_channels(path: Path, generator: Generator) -> MadeInput:
    """A TIFF with channels beyond its grey or colours, or with colours of another kind; Pillow gives some of them."""
    kinds = {1: 1, 2: 3, 5: 4, 6: 3, 8: 3}  # photometric interpretation -> its channels: grey, RGB, CMYK, YCbCr, LAB
    photometric = int(generator.choice([1, 2, 1, 2, 5, 6, 8]))
    extra = int(generator.integers(0, 4)) if photometric < 5 else 0
    height, width = (int(size) for size in generator.integers(1, 5, 2))
    pixels = _values(generator, np.dtype("u1"), (height, width, kinds[photometric] + extra))
    order = str(generator.choice(["<", ">"]))
    content = tiff_bytes(pixels, order, photometric=photometric, extra=[0] * extra)
    path.with_suffix(".tif").write_bytes(content)
    expected = {1: pixels[None, ..., 0], 2: pixels[None]}.get(photometric) if not extra else None
    what = f"tiff of {pixels.shape[-1]} channels, photometric {photometric} {order}"
    return MadeInput(what, str(path.with_suffix(".tif")), expected)


def _several_in_one(path: Path, generator: Generator) -> MadeInput:
    """One or two arrays or pictures in one file, as formats allow that are written one after the other."""
    count, form = int(generator.integers(1, 3)), str(generator.choice(["npy", "npz", "pgm", "ppm", "pfm", "jpeg"]))
    pixels = generator.integers(0, 256, (3, 4, 3) if form in ("ppm", "jpeg") else (3, 4)).astype(np.uint8)
    if form in ("npy", "npz"):
        stream = io.BytesIO()
        for _ in range(count):
            np.save(stream, pixels)
        content, expected = stream.getvalue(), pixels
        if form == "npz":
            path = path.with_suffix(".npz")
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x.npy", content)
            return MadeInput(f"npz {count}", f"{path}#x", expected if count == 1 else None)
    elif form == "jpeg":
        stream = io.BytesIO()
        mode = str(generator.choice(["RGB", "CMYK"]))
        Image.fromarray(pixels).convert(mode).save(stream, "JPEG")
        content, expected = stream.getvalue(), np.asarray(Image.open(stream))[None]
        count = 1 if mode == "RGB" else 2
    else:
        head = {"pgm": b"P5 4 3 255\n", "ppm": b"P6 4 3 255\n", "pfm": b"Pf\n4 3\n-1.0\n"}[form]
        floats = pixels.astype("<f4")
        data = floats[::-1].tobytes() if form == "pfm" else pixels.tobytes()
        content, expected = (head + data) * count, (floats if form == "pfm" else pixels)[None]
    path = path.with_suffix(f".{form}")
    path.write_bytes(content)
    return MadeInput(f"{form} {count}", str(path), expected if count == 1 else None)


def png_bytes(pixels: Array, colour_type: int, *, bits: int | None = None, clear: int | None = None) -> bytes:
    """A PNG of [height, width, channels] with 8 or 16 bits a channel, or fewer `bits` of one.

    `clear`: the grey value that is transparent.
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def packed(row: Array) -> bytes:
        if bits is None or bits >= 8:
            return row.astype(row.dtype.newbyteorder(">")).tobytes()
        return np.packbits(np.unpackbits(row.reshape(-1, 1), axis=1)[:, 8 - bits :].ravel()).tobytes()

    height, width, _ = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, bits or 8 * pixels.dtype.itemsize, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + packed(row) for row in pixels)
    transparent = b"" if clear is None else chunk(b"tRNS", struct.pack(">H", clear))
    parts = (chunk(b"IHDR", head), transparent, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _literal(path: Path, generator: Generator) -> MadeInput:
    """A list of numbers as JSON, at the limits of its type or beyond them."""
    name = str(generator.choice([*WIRE_DTYPES]))
    dtype = WIRE_DTYPES[name]
    if dtype == np.bool_:
        numbers: list[Any] = [bool(bit) for bit in generator.integers(0, 2, 3)]
        if generator.random() < 0.3:
            numbers[1] = int(generator.integers(0, 3))
        is_kept = all(type(number) is bool for number in numbers)
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        beyond = generator.random() < 0.4
        numbers = [int(limits.min), int(limits.max), int(generator.integers(limits.min, limits.max, dtype=dtype))]
        if beyond:
            numbers[2] = [int(limits.max) + 1, int(limits.min) - 1, 2**64, 0.5, True][generator.integers(5)]
        is_kept = all(type(number) is int and limits.min <= number <= limits.max for number in numbers)
    else:
        largest = float(np.finfo(dtype).max)
        numbers = [-0.0, largest, float(np.finfo(dtype).smallest_subnormal), float(generator.standard_normal())]
        if generator.random() < 0.4:
            numbers[3] = [2 * largest, -2 * largest, 10**400, True, None][generator.integers(5)]
        is_kept = all(type(number) in (int, float) and abs(number) <= largest for number in numbers)
    text = json.dumps(numbers).replace("Infinity", "1e400")
    expected = np.array(numbers, dtype)[None] if is_kept else None
    return MadeInput(f"{name}:{text[:60]}", f"{name}:{text}", expected)
