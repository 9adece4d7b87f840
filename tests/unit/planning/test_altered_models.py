"""`diff` and `report` name models that were replaced under a plan: they would state the old figures as true."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.planning.altered_models import altered_models
from jellybean.report import Store, build_report
from jellybean_solver import Plan
from tests import report_plans as plans


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Plan]:
    """A project with a plan, whose models are the planned ones."""
    folder = tmp_path / "digits"
    (folder / "models").mkdir(parents=True)
    operators = []
    for operator in plans.digits().operators:
        assert operator.model is not None
        path = folder / operator.model.path
        path.write_bytes(operator.name.encode())
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        operators.append(replace(operator, model=replace(operator.model, sha256=sha256)))
    plan = replace(plans.digits(), operators=tuple(operators))
    (folder / "plan.json").write_text(json.dumps(plans.document(plan)), encoding="utf-8")
    return folder, plan


def test_a_replaced_model_is_named_by_diff_and_report(
    served: tuple[Path, Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plan = served
    store = Store.of(folder)
    store.add_plan(plans.document(plan))
    assert not list(altered_models(folder, plan))
    assert not [text for text in build_report(store).caveats if "models have changed" in text]
    assert run(["diff", str(folder), str(folder)]) == 0
    assert "models have changed" not in capsys.readouterr().err
    first = plan.operators[0]
    assert first.model is not None
    (folder / first.model.path).write_bytes(b"retrained")
    now = hashlib.sha256(b"retrained").hexdigest()
    sentence = f"{first.name} {first.variant} ({first.model.path}) was {first.model.sha256[:12]}, is now {now[:12]}"
    assert list(altered_models(folder, plan)) == [sentence]
    assert [text for text in build_report(store).caveats if sentence in text]
    assert run(["diff", str(folder), str(folder)]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.count(sentence) == 1
    assert "cannot start again" in shown
