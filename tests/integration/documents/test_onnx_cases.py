"""The onnx package's own cases of its operators, and models that torch exported: served as onnxruntime runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drafted_models import faults_of
from tests.support.onnx_cases import case_folders, case_of_files, onnx_cases


def check(folder: Path, seed: int, count: int) -> None:
    refused, faults = 0, list[str]()
    for made in onnx_cases(folder, seed, count):
        faults += faults_of(made, folder / made.what)
        refused += bool(made.refusal)
    assert faults == []
    assert refused < count / 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cases_of_operators(tmp_path: Path) -> None:
    check(tmp_path, seed=1, count=200)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_many_cases_of_operators(tmp_path: Path) -> None:
    check(tmp_path, seed=2, count=1200)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_that_torch_exported(tmp_path: Path) -> None:
    made = [case_of_files(tmp_path, case) for case in case_folders()]
    faults = [fault for each in made for fault in faults_of(each, tmp_path / each.what)]
    assert faults == []
    assert sum(not each.refusal for each in made) > 70
