"""Inputs of a model that no request brings, by their names and shapes: single numbers, and states of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jellybean.documents.checks.tensors import Port
from jellybean_agent import rows_axis, rows_first, unserved_reason

_STATE_WORDS = frozenset({"state", "states", "hidden", "cell", "memory", "mem", "cache", "context", "carry", "h", "c"})
_BEFORE = frozenset({"in", "input", "past", "prev", "previous", "old", "init", "initial", "0"})
_AFTER = frozenset({"out", "output", "present", "next", "new", "updated", "n", "1"})
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_RATES = frozenset({"sr", "fs", "sampling", "rate"})  # words in the name of a sampling rate
_SAMPLES_PER_S = 16000  # of speech, as most models take it


def guessed_constant(port: Port) -> bool | int | float | None:
    """A value for an input that is a single number, which no request brings; None for other inputs."""
    if port.tensor.shape != () or unserved_reason(port.tensor.dtype):
        return None
    if port.tensor.dtype == "bool":
        return True
    if _RATES & set(_words(port.name)):
        return _SAMPLES_PER_S
    return 1.0 if port.tensor.dtype.startswith("float") else 1


def guessed_state(inputs: Sequence[Port], outputs: Sequence[Port]) -> Mapping[str, str]:
    """Input -> the output that a stream's next chunk takes, where names and shapes say so; at least one input is left.

    `outputs`: without the answer. The names have a word for a state, and are alike but for what says before and
    after: h0 and hn, state and stateN.
    """
    pairs: dict[str, str] = {}
    for port in inputs:
        made = [output for output in outputs if output.name not in pairs.values() and _continues(port, output)]
        if len(made) == 1:
            pairs[port.name] = made[0].name
    return pairs if len(pairs) < len(inputs) else {}


def _continues(port: Port, output: Port) -> bool:
    before = [word for word in _words(port.name) if word not in _BEFORE]
    after = [word for word in _words(output.name) if word not in _AFTER]
    if before != after or not _STATE_WORDS & set(before) or port.tensor.dtype != output.tensor.dtype:
        return False
    taken, made = port.tensor.shape, output.tensor.shape
    if taken is None or len(taken) < 2:
        return False
    axis = rows_axis(taken)
    rows, *sizes = rows_first(taken, axis)
    if rows not in (None, 1) or None in sizes:
        return False
    pairs = zip(taken, made or taken, strict=False)
    return len(made or taken) == len(taken) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _words(name: str) -> list[str]:
    """The words of a name in lower case: stateN is state and n, h0 is h and 0."""
    words = [word.lower() for word in _WORDS.findall(name)]
    split: list[str] = []
    for word in words:
        if word in ("hn", "cn"):
            split += [word[0], "n"]
        else:
            split.append(word)
    return split
