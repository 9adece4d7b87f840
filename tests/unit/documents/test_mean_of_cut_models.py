"""A mean accuracy with models that may be cut is refused where it is written, as plans would compare cost alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import load_project
from jellybean.errors import DocumentError
from tests.support.scales_project import make_scales_project


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("slo.accuracy={mean: 90}", "plans for a mean accuracy do not cut models"),
        ("slo.accuracy={mean: 90, penalty: 0.1 USD/h}", "plans for a mean accuracy do not cut models"),
        ("objective=mean_accuracy", "plans for the highest mean accuracy do not cut models"),
    ],
)
def test_a_mean_accuracy_and_cuts_are_refused_together(tmp_path: Path, option: str, expected: str) -> None:
    folder = make_scales_project(tmp_path / "scales")
    load_project(folder, [option])
    load_project(folder, ["slo.accuracy=90", "operators.first.cuts=1"], profiles=False)
    with pytest.raises(DocumentError) as refused:
        load_project(folder, [option, "operators.first.cuts=1"], profiles=False)
    (problem,) = refused.value.problems
    assert expected in problem.message and "operators.first.cuts" in problem.path
    assert "set operators.first.cuts=0, or " in problem.hint
