"""Tells runs that fail because of the values of their inputs from runs that fail for another reason.

A failed run is diagnosed by running the model again. What was learnt is remembered, so that a client that goes on
sending such values costs one run per request, as any other client.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from jellybean_agent.execution.providers import ORT_ERRORS
from jellybean_agent.tensors.tensors import Array

_ARGUMENT_ERRORS = (ort_errors.InvalidArgument, ort_errors.Fail)  # some kernels report an invalid index as FAIL
_NUMBER = re.compile(r"-?\b(?:\d[\d.]*(?:e[+-]?\d+)?|nan|inf)\b", re.IGNORECASE)
_MAX_KINDS = 64  # of failures that are diagnosed; a model has few
_MAX_DIAGNOSES = 4  # of one kind without a fault of the values, which other shapes or a passing fault may have hidden


class ValueFaults:
    """The failures of one model. `run`: runs it; its exceptions are onnxruntime's.

    A kind of failure is onnxruntime's message, which names the node, without its numbers. Invariant: at most
    `_MAX_KINDS * _MAX_DIAGNOSES` failures are diagnosed, each with at most two runs.
    """

    def __init__(self, run: Callable[[Mapping[str, Array]], object]) -> None:
        self._run = run
        self._of_values: set[str] = set()  # kinds of failure that values cause
        self._others: Counter[str] = Counter()  # kind -> diagnoses that did not find the values at fault

    def is_one(self, feed: Mapping[str, Array], error: Exception) -> bool:
        """True if the run of `feed` failed with `error` because of its values, not of the model or this machine.

        Three conditions: the error is of a class that kernels use for invalid arguments (an index outside a table);
        zeros of the same shapes are answered; and `feed` fails again with the same error. Wrong shapes, a broken
        model, lack of memory and passing faults each miss one. The last two are tried until a kind of failure has met
        them, at most `_MAX_DIAGNOSES` times.
        """
        kind = _NUMBER.sub("#", str(error))
        if kind in self._of_values:
            return True
        is_known = kind in self._others
        is_full = len(self._others) + len(self._of_values) >= _MAX_KINDS
        if (
            not isinstance(error, _ARGUMENT_ERRORS)
            or self._others[kind] >= _MAX_DIAGNOSES
            or (is_full and not is_known)
        ):
            return False
        if not self._recurs(feed, error):
            self._others[kind] += 1
            return False
        self._of_values.add(kind)
        return True

    def _recurs(self, feed: Mapping[str, Array], error: Exception) -> bool:
        """True if zeros are answered where `feed` fails again with the same error."""
        try:
            self._run({name: np.zeros_like(array) for name, array in feed.items()})
        except ORT_ERRORS:
            return False
        try:
            self._run(feed)
        except ORT_ERRORS as again:
            return str(again) == str(error)
        return False
