"""A plan whose accuracy was predicted with other labels or held-out inputs says so in `bench` and `report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jellybean.bench.caveats import find_caveats
from jellybean.documents import load_project
from jellybean.planning import stale_accuracy_text
from jellybean.report import Store, build_report
from jellybean_solver import Plan
from tests import report_plans as plans
from tests.support.measured_project import copied_project, make_project_beside_steps


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Plan]:
    """A project with measured profiles, and a plan with their accuracy."""
    folder = copied_project(make_project_beside_steps(tmp_path), tmp_path / "copy", monkeypatch)
    return folder, replace(plans.one_worker("gate", "split", "few"), accuracy=90.0)


def change_labels(folder: Path) -> None:
    with np.load(folder / "data/heldout.npz") as archive:
        arrays = dict(archive)
    np.savez(folder / "data/heldout.npz", **{**arrays, "labels": arrays["labels"][::-1].copy()})


def test_changed_labels_are_told(planned: tuple[Path, Plan]) -> None:
    folder, plan = planned
    store = Store.of(folder)
    store.add_plan(plans.document(plan))
    assert stale_accuracy_text(load_project(folder), plan) == ""
    assert build_report(store).caveats == ()
    change_labels(folder)
    text = stale_accuracy_text(load_project(folder), plan)
    assert text.startswith("the accuracy of this plan was predicted with other data: labels was ")
    assert f"`jellybean profile {folder}`, then `jellybean plan {folder}`" in text
    assert list(find_caveats({}, stale_accuracy=text)) == [text]
    store.add_measurement(build_report(store).plan_hash, plans.measurement(plan, caveats=[text]))
    assert build_report(store).caveats == (text,)  # once: the bench has recorded the same


def test_profiles_that_were_measured_anew_since_the_plan_are_told(planned: tuple[Path, Plan]) -> None:
    folder, plan = planned
    text = stale_accuracy_text(load_project(folder), replace(plan, accuracy=87.5))
    assert "accuracy of its variants was 87.5 % in the profiles, is now 90 %" in text
    assert stale_accuracy_text(load_project(folder), replace(plan, accuracy=None)) == ""
