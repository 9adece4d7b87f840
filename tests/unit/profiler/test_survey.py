"""Children and messages are counted on whole passes over the held-out rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jellybean.profiler.flow import Flow
from jellybean.profiler.survey import survey, surveyed_rows
from jellybean.profiler.workload import Model, Step, Workload
from jellybean_agent import GATEWAY
from jellybean_solver import Edge, EdgeKind
from tests.support.tiny_models import positives, scale

ROWS = 120


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """`find` has two children in each of the rows 0 to 59 and one in the others; `judge` has three variants."""
    find = Model("find", "only", tmp_path / "find.onnx", positives(tmp_path / "find.onnx"))
    judge = tuple(
        Model("judge", name, tmp_path / f"{name}.onnx", scale(tmp_path / f"{name}.onnx", 2.0, 1)) for name in "abc"
    )
    steps = (
        Step("find", (Edge("x", "find"),), (find,)),
        Step("judge", (Edge("find", "judge", EdgeKind.FAN_OUT),), judge),
    )
    rows = np.ones((ROWS, 2), np.float32)
    rows[60:, 1] = -1.0
    return Workload(steps, {"x": rows}, None, "top1", {})


def test_every_row_counts_once_in_the_children_of_a_fan_out(workload: Workload) -> None:
    flow = Flow(workload)
    found = survey(workload, flow)
    assert flow.traffic.fan_outs["find", "only", "judge"] == {1: 60, 2: 60}
    assert found.child_shares["find", "only"] == (0.0, 0.5, 0.5)
    assert found.children["find", "only", "judge"] == 1.5


def test_other_variants_run_rows_spread_over_all_where_no_fan_out_depends_on_them(workload: Workload) -> None:
    flow = Flow(workload)
    found = survey(workload, flow)
    assert {variant: flow.traffic.runs["judge", variant, GATEWAY] for variant in "abc"} == {"a": 180, "b": 90, "c": 90}
    assert found.child_shares["find", "only"] == (0.0, 0.5, 0.5)


def test_all_variants_run_all_rows_where_a_fan_out_depends_on_them(workload: Workload, tmp_path: Path) -> None:
    """`find` has one variant, but `shift` before it has two."""
    shift = tuple(
        Model("shift", name, tmp_path / f"{name}.onnx", scale(tmp_path / f"{name}.onnx", 1.0, 2)) for name in "de"
    )
    find, judge = workload.steps
    steps = (
        Step("shift", (Edge("x", "shift"),), shift),
        Step("find", (Edge("shift", "find"),), find.models),
        judge,
    )
    shifted = replace(workload, steps=steps)
    flow = Flow(shifted)
    survey(shifted, flow)
    assert flow.traffic.fan_outs["find", "only", "judge"] == {1: 120, 2: 120}


def test_sample_inputs_are_of_the_first_variants_and_of_each_row_once(workload: Workload) -> None:
    found = survey(workload, Flow(workload), 40)
    assert len(found.rows["find"]) == len(set(found.rows["find"])) == 40
    assert len(found.inputs["judge"]) == 60


def test_of_many_rows_evenly_spread_ones_are_surveyed(workload: Workload) -> None:
    assert surveyed_rows(workload, 1000) == list(range(ROWS))
    assert surveyed_rows(workload, 4) == [0, 40, 79, 119]
