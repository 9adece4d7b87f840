"""Answers as `infer` prints them."""

from __future__ import annotations

import numpy as np
import pytest

from jellybean.cli.serving.infer import readable
from jellybean.errors import JellyBeanError


def test_answers_are_numbers_unless_they_are_called_text() -> None:
    bytes_of_text = np.frombuffer("Käse\n8.91\0\0".encode(), np.uint8)[np.newaxis]
    assert readable(bytes_of_text, is_text=True) == "Käse\n8.91"
    assert readable(bytes_of_text[:, :2]) == "[[ 75 195]]"
    assert readable(np.array([7])) == "7"
    assert readable(np.zeros((1, 0), np.uint8), is_text=True) == ""


def test_what_is_no_text_is_said() -> None:
    with pytest.raises(JellyBeanError, match=r"text is UTF-8 bytes \(uint8\), not int64"):
        readable(np.array([1, 2]), is_text=True)
