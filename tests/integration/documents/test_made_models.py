"""ONNX files of each kind: served with the answers of onnxruntime, or refused before that, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drafted_models import faults_of
from tests.support.made_models import KINDS, made_models


def check(folder: Path, seed: int, count: int) -> None:
    refused, faults = 0, list[str]()
    for number, made in enumerate(made_models(folder, seed, count)):
        faults += faults_of(made, folder / f"project-{number}")
        refused += bool(made.refusal)
    assert faults == []
    assert 0 < refused < count / 2  # both verdicts occur


def test_a_model_of_each_kind_is_served_as_it_is_or_refused(tmp_path: Path) -> None:
    check(tmp_path, seed=0, count=len(KINDS))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_are_served_as_they_are_or_refused(tmp_path: Path) -> None:
    check(tmp_path, seed=1, count=10 * len(KINDS))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_models_are_served_as_they_are_or_refused(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, count=30 * len(KINDS))
