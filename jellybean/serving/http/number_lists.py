"""Tensors as JSON lists, read step by step straight into an array of their datatype.

No Python object of an element outlives its step: a list costs its text and its tensor, whatever is in it, and others
wait for a step only. numpy never guesses a type. The first element that is wrong is named by its index.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jellybean_agent import (
    MAX_TENSOR_BYTES,
    MAX_TENSOR_RANK,
    TEXT_NOT_SERVED,
    WIRE_DTYPES,
    Array,
    InvalidInputError,
    Steps,
)

_COPIES = 2  # of a tensor: in the message that becomes of the JSON, and in what becomes of that
PIECE_BYTES = 2**12  # of text that one step converts, in about a quarter of a millisecond
_WINDOW_BYTES = 2**8, 2**16  # of text in which one step looks for the end of nested lists: the first one, the largest
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. InvalidInputError for a key that comes twice, of whose values the first would be dropped."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidInputError(f"the key {twice[:60]!r} comes twice in one object of the JSON: send it once")
    return found


class NegativeZero(int):
    """The number -0 of JSON: zero among integers, and the zero with a sign among floats."""


def _integer(digits: str) -> int:
    return NegativeZero() if digits == "-0" else int(digits)


_DECODING: dict[str, Any] = {"parse_constant": _INFINITE.__getitem__, "object_pairs_hook": _unique_keys}
_DECODER, _SIGNED_DECODER = json.JSONDecoder(**_DECODING), json.JSONDecoder(parse_int=_integer, **_DECODING)
_NEGATIVE_ZERO = re.compile(r"-0(?![\d.eE])")  # what C's %g and Go write for -0.0
_TYPES: dict[str, frozenset[type[Any]]] = {  # kind of a dtype -> types of the elements that it accepts
    "b": frozenset({bool}),
    "i": frozenset({int, NegativeZero}),
    "u": frozenset({int, NegativeZero}),
    "f": frozenset({int, float, NegativeZero}),
}
_TYPE_WORDS: dict[type[Any], str] = {
    bool: "true or false",
    int: "a whole number",
    NegativeZero: "a whole number",
    float: "a fraction",
    type(None): "null",
    str: f"text, but {TEXT_NOT_SERVED}",
    dict: "an object",
    list: "a list",
}
_MAX_FLOAT = int(np.finfo(np.float64).max)
_OPEN, _CLOSE, _COMMA, _VALUE, _SPACE = range(5)
_KINDS = np.full(256, _VALUE, np.uint8)
_KINDS[[ord(character) for character in "[],"]] = _OPEN, _CLOSE, _COMMA
_KINDS[[ord(character) for character in " \t\r\n"]] = _SPACE
_MAY_FOLLOW = np.zeros((4, 4), np.bool_)  # [kind of a character, kind of the next one]
for _before, _after in ((_OPEN, (_OPEN, _VALUE)), (_CLOSE, (_CLOSE, _COMMA)), (_COMMA, (_OPEN, _VALUE))):
    _MAY_FOLLOW[_before, _after] = True
_MAY_FOLLOW[_VALUE, (_CLOSE, _COMMA, _VALUE)] = True


def decode_json(text: str) -> Any:
    """The value of a JSON text: integers have all their digits, and -0 its sign. ValueError if it is none.

    InvalidInputError for a key that comes twice in one object.
    """
    return (_SIGNED_DECODER if _NEGATIVE_ZERO.search(text) else _DECODER).decode(text)


class NumberList(NamedTuple):
    """A list by its place in a text: from its first bracket to behind its last one."""

    text: bytes
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def find_end(text: bytes, begin: int, where: str) -> Steps[NumberList]:
    """The list that begins at `begin`. InvalidInputError if it has no end, or holds text or objects."""
    end = text.find(b"]", begin)
    if end >= 0 and text.find(b"[", begin + 1, end) >= 0:
        end = yield from _end_of_nested(text, begin, where)
    found = NumberList(text, begin, end + 1)
    if end >= 0:
        _refuse_text(found, where)
        return found
    _refuse_text(NumberList(text, begin, len(text)), where)
    raise InvalidInputError(f"not JSON: {where} has no end")


def _end_of_nested(text: bytes, begin: int, where: str) -> Steps[int]:
    """Where the last bracket is; -1 if it is missing."""
    depth, at, (size, largest) = 0, begin, _WINDOW_BYTES
    while at < len(text):
        window = np.frombuffer(text, np.uint8, min(size, len(text) - at), at)
        steps = (window == ord("[")).view(np.int8) - (window == ord("]")).view(np.int8)
        depths = depth + np.cumsum(steps, dtype=np.int32)
        ends = np.flatnonzero(depths == 0)
        until = int(ends[0]) + 1 if len(ends) else len(window)
        _refuse_text(NumberList(text, at, at + until), where, begin)
        if depths[:until].max() > MAX_TENSOR_RANK:
            raise InvalidInputError(
                f"{where}: lists are nested deeper than the {MAX_TENSOR_RANK} dimensions of a tensor"
            )
        if len(ends):
            return at + until - 1
        depth, at, size = int(depths[-1]), at + len(window), min(4 * size, largest)
        yield
    return -1


def _refuse_text(part: NumberList, where: str, begin: int | None = None) -> None:
    """InvalidInputError if a part of a list, which begins at `begin`, holds text or objects."""
    marks = (part.text.find(mark, part.begin, part.end) for mark in (b'"', b"{"))
    first = min((mark for mark in marks if mark >= 0), default=None)
    if first is None:
        return
    index = part.text.count(b",", part.begin if begin is None else begin, first)
    reason = f"is text, but {TEXT_NOT_SERVED}" if part.text[first] == ord('"') else "is an object, not a number"
    raise InvalidInputError(f"{where}[{index}] {reason}")


def read_list(values: list[Any], dtype: str, shape: tuple[int, ...], where: str) -> Array:
    """The elements of a small list, which is parsed already; else like `read_numbers`."""
    wanted, count = WIRE_DTYPES[dtype], math.prod(shape)
    if len(shape) > 1 and values and type(values[0]) is list:
        values = _flattened(values, shape, where)
    if len(values) != count:
        raise _wrong_count(len(values), shape, where)
    return _converted(values, wanted, dtype, f"{where}[{{}}]", 0) if values else np.zeros(0, wanted)


def _flattened(values: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """The elements of nested lists. InvalidInputError unless their lengths are those of the shape."""
    rows, inner = [values], shape
    while inner:
        wrong = next((at for at, row in enumerate(rows) if type(row) is not list or len(row) != inner[0]), None)
        if wrong is not None:
            raise _wrong_lists(wrong * math.prod(inner), shape, where)
        rows, inner = [item for row in rows for item in row], inner[1:]
    wrong = next((at for at, item in enumerate(rows) if type(item) is list), None)
    if wrong is not None:
        raise _wrong_lists(wrong, shape, where)
    return rows


def read_numbers(
    found: NumberList, dtype: str, shape: tuple[int, ...], where: str, hold: Callable[[int], None]
) -> Steps[Array]:
    """The elements as a flat array. The list is flat, or nested as the shape says; else InvalidInputError.

    `hold(size)`: counts bytes before they are allocated.
    """
    wanted, count = WIRE_DTYPES[dtype], math.prod(shape)
    if count * wanted.itemsize > MAX_TENSOR_BYTES:
        raise InvalidInputError(f"{where}: {count} {dtype} are above the limit of {MAX_TENSOR_BYTES} bytes")
    if not count:
        _check_empty(found, shape, where)
        return np.zeros(0, wanted)
    if 2 * count - 1 > found.size - 2:  # an element takes a character, and a comma to the next one
        raise _wrong_count(found.text.count(b",", found.begin, found.end) + 1, shape, where)
    hold(_COPIES * count * wanted.itemsize)
    array: Array = np.empty(count, wanted)
    pieces = _Pieces(found, shape, where)
    done = 0
    while not pieces.is_over:
        text = pieces.next(done)
        values = _parse(text, f"{where}[{{}}]", done)
        if done + len(values) > count:
            raise _wrong_count(found.text.count(b",", found.begin, found.end) + 1, shape, where)
        array[done : done + len(values)] = _converted(values, wanted, dtype, f"{where}[{{}}]", done)
        done += len(values)
        yield
    if done != count:
        raise _wrong_count(found.text.count(b",", found.begin, found.end) + 1, shape, where)
    return array


class _Pieces:
    """The text of a list in pieces of elements, without their brackets, which are checked against the shape."""

    def __init__(self, found: NumberList, shape: tuple[int, ...], where: str) -> None:
        self._text, self._where = found.text, where
        self._nesting: _Nesting | None = None
        begin = bytes(found.text[found.begin + 1 : found.begin + 1 + PIECE_BYTES]).lstrip(b" \t\r\n")
        if len(shape) > 1 and begin.startswith(b"["):
            self._nesting = _Nesting(shape, where)
            self._at, self._until = found.begin, found.end
        else:
            self._at, self._until = found.begin + 1, found.end - 1
        self.is_over = False

    def next(self, index: int) -> str:
        """The text from element `index` on, as JSON without its outer brackets."""
        at, until = self._at, self._until
        if until - at > PIECE_BYTES:
            until = self._text.rfind(b",", at, at + PIECE_BYTES)
            if until < 0:
                raise InvalidInputError(f"{self._where}[{index}] is no number: it has more than {PIECE_BYTES} bytes")
        piece = bytes(self._text[at:until])
        self._at, self.is_over = until + 1, until == self._until
        if self._nesting is not None:
            self._nesting.check(piece if self.is_over else piece + b",", index)
            piece = piece.translate(None, b"[]")
        try:
            return piece.decode("ascii")
        except UnicodeDecodeError as error:
            at_fault = index + piece.count(b",", 0, error.start)
            raise InvalidInputError(f"{self._where}[{at_fault}] is no number") from error


class _Nesting:
    """Checks that brackets are those of a shape, a piece of text at a time.

    Before element i, a comma stands outside of as many lists as end there: of all trailing dimensions that i is a
    multiple of. That, the order of neighbouring characters, and the depth of the elements decide.
    """

    def __init__(self, shape: tuple[int, ...], where: str) -> None:
        self._shape, self._where = shape, where
        self._sizes = [math.prod(shape[at:]) for at in range(1, len(shape))]  # elements of the inner lists
        self._depth, self._last = 0, _COMMA

    def check(self, piece: bytes, index: int) -> None:
        """Check a piece whose first element is `index`."""
        kinds = _KINDS[np.frombuffer(piece, np.uint8)]
        kinds = kinds[kinds != _SPACE]
        if not len(kinds):
            return
        depths = self._depth + np.cumsum(
            (kinds == _OPEN).view(np.int8) - (kinds == _CLOSE).view(np.int8), dtype=np.int32
        )
        commas = np.flatnonzero(kinds == _COMMA)
        elements = np.arange(index + 1, index + 1 + len(commas))
        inside = np.full(len(commas), len(self._shape))
        for size in self._sizes:
            inside -= elements % size == 0
        is_wrong = ~_MAY_FOLLOW[np.concatenate(([self._last], kinds[:-1])), kinds]
        is_wrong |= (kinds == _VALUE) & (depths != len(self._shape))
        is_wrong[commas] |= depths[commas] != inside
        if is_wrong.any():
            at = index + int(np.count_nonzero(commas < int(np.argmax(is_wrong))))
            raise _wrong_lists(at, self._shape, self._where)
        self._depth, self._last = int(depths[-1]), int(kinds[-1])


def _parse(text: str, where: str, first: int) -> list[Any]:
    """The elements of a piece whose first one has the index `first`; there is at least one."""
    try:
        values: list[Any] = decode_json(f"[{text}]")
    except json.JSONDecodeError as error:
        index = first + text.count(",", 0, max(error.pos - 1, 0))
        raise InvalidInputError(f"{where.format(index)} is no number") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise InvalidInputError(f"{where.format(first)} or one soon after it is no number") from error
    if not values:
        raise InvalidInputError(f"{where.format(first)} is missing")
    return values


def _converted(values: list[Any], wanted: np.dtype[Any], dtype: str, where: str, first: int) -> Array:
    """Elements as an array of their dtype. InvalidInputError names the first one of another type, or too large."""
    types, given = _TYPES[wanted.kind], set(map(type, values))
    if not types.issuperset(given):
        index, value = next((index, value) for index, value in enumerate(values) if type(value) not in types)
        wrong_type = "" if type(value) is str else f", not {dtype}"
        raise InvalidInputError(f"{where.format(first + index)} is {_TYPE_WORDS[type(value)]}{wrong_type}")
    if wanted.kind == "b":
        return np.array(values, wanted)
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if min(values) < limits.min or max(values) > limits.max:
            index = next(at for at, value in enumerate(values) if not limits.min <= value <= limits.max)
            raise InvalidInputError(f"{where.format(first + index)}: {str(values[index])[:40]} is no {dtype}")
        return np.array(values, wanted)
    if NegativeZero in given:
        values = [-0.0 if type(value) is NegativeZero else value for value in values]
    try:
        with np.errstate(over="ignore"):
            rounded = np.array(values, wanted)
        if not np.isinf(rounded).any():
            return rounded
        too_large = [int(at) for at in np.flatnonzero(np.isinf(rounded)) if not _is_infinite(values[at])]
    except OverflowError:  # an integer above all float64
        too_large = [at for at, value in enumerate(values) if isinstance(value, int) and abs(value) > _MAX_FLOAT]
    if too_large:
        raise InvalidInputError(
            f"{where.format(first + too_large[0])}: {str(values[too_large[0]])[:40]} is too large for {dtype}"
        )
    return rounded


def _is_infinite(value: object) -> bool:
    """True if an element was written as infinity, False if it is a number that is too large."""
    return any(value is constant for constant in _INFINITE.values())


def _check_empty(found: NumberList, shape: Sequence[int], where: str) -> None:
    """InvalidInputError unless a list is that of a tensor without elements: [], or nested up to the dimension of 0."""
    outer = shape[: shape.index(0)]
    if found.size <= PIECE_BYTES and 2 * math.prod(outer) <= PIECE_BYTES:
        nested = b"[]"
        for size in reversed(outer):
            nested = b"[" + b",".join([nested] * size) + b"]"
        text = bytes(found.text[found.begin : found.end]).translate(None, b" \t\r\n")
        if text in (b"[]", nested):
            return
    raise _wrong_lists(0, shape, where)


def _wrong_count(count: int, shape: Sequence[int], where: str) -> InvalidInputError:
    return InvalidInputError(f"{where} has {count} elements, but shape {list(shape)} takes {math.prod(shape)}")


def _wrong_lists(index: int, shape: Sequence[int], where: str) -> InvalidInputError:
    return InvalidInputError(f"{where}[{index}]: the lists there are neither flat nor those of shape {list(shape)}")
