"""Arrays, pictures and numbers enter as they are, or are refused with the reason; none enters as another."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from jellybean.cli.serving.request_inputs import load_tensor
from jellybean.errors import InputError
from jellybean_agent import InvalidInputError, decode_tensor, encode_tensor
from tests.support.made_inputs import MadeInput, made_inputs


def fault_of(made: MadeInput) -> str:
    """How an input enters otherwise than it should; empty if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, for bits that are NaN
            entered = decode_tensor(encode_tensor(load_tensor(made.reference)))
    except (InputError, InvalidInputError) as error:
        if made.expected is not None:
            return f"{made.what}: refused, but a tensor says the same: {error}"
        return "" if len(str(error)) > 20 else f"{made.what}: refused without a reason: {error}"
    if made.expected is None:
        return f"{made.what}: entered as {entered.dtype} {entered.shape}, which is not what it holds"
    is_same = entered.dtype == made.expected.dtype and entered.shape == made.expected.shape
    if is_same and entered.tobytes() == np.ascontiguousarray(made.expected).tobytes():
        return ""
    return f"{made.what}: {made.expected.dtype} {made.expected.shape} entered as {entered.dtype} {entered.shape}"


def check(folder: Path, seed: int, count: int) -> None:
    cases = list(made_inputs(folder, seed, count))
    assert [fault for made in cases if (fault := fault_of(made))] == []
    taken = sum(made.expected is not None for made in cases)
    assert count / 3 < taken < count  # both verdicts occur


def test_some_inputs_enter_as_they_are_or_are_refused(tmp_path: Path) -> None:
    check(tmp_path, seed=0, count=60)


@pytest.mark.slow
def test_inputs_enter_as_they_are_or_are_refused(tmp_path: Path) -> None:
    check(tmp_path, seed=1, count=300)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_inputs_enter_as_they_are_or_are_refused(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, count=600)
