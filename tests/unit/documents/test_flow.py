"""Edge kinds, levels and rates."""

from __future__ import annotations

from typing import Any

import pytest

from jellybean.documents import WorkflowDocument, follow_requests
from jellybean.documents.flow import Flow
from jellybean_solver import EdgeKind


def flow(rate: float = 10.0, **inputs: list[Any]) -> Flow:
    """A workflow over sources `a` and `b` with the given inputs by operator."""
    source = {"tier": "edge", "rate": f"{rate}/s", "message": "1 B"}
    operators = {name: {"inputs": edges, "variants": ["v"]} for name, edges in inputs.items()}
    data = {"kind": "Workflow", "name": "w", "sources": {"a": source, "b": source}, "operators": operators}
    return follow_requests(WorkflowDocument.model_validate(data), {})


def kinds(found: Flow, operator: str) -> list[tuple[EdgeKind, float]]:
    assert not found.problems, found.problems
    return [(edge.kind, pytest.approx(edge.ratio)) for edge in found.edges[operator]]


def test_a_fan_out_a_join_of_its_children_and_a_gather() -> None:
    found = flow(
        find=["a"],
        shape=[{"from": "find", "ratio": 4}],
        strokes=[{"from": "find", "ratio": 4}],
        read=["shape", "strokes"],
        number=[{"from": "read", "gather": True}],
    )
    assert kinds(found, "shape") == [(EdgeKind.FAN_OUT, 4)]
    assert kinds(found, "read") == [(EdgeKind.EACH, 1), (EdgeKind.EACH, 1)]
    assert kinds(found, "number") == [(EdgeKind.GATHER, 0.25)]
    assert found.streams["read"].rate_per_s == pytest.approx(40)
    assert found.streams["number"].rate_per_s == pytest.approx(10)
    assert found.order.index("find") < found.order.index("shape") < found.order.index("read")


def test_a_ratio_in_a_join_gathers_when_it_is_one_level_deeper() -> None:
    found = flow(find=["a"], read=[{"from": "find", "ratio": 4}], all=[{"from": "read", "ratio": 0.25}, "b"])
    assert kinds(found, "all") == [(EdgeKind.GATHER, 0.25), (EdgeKind.EACH, 1)]


def test_a_ratio_with_few_digits_becomes_exact() -> None:
    found = flow(find=["a"], read=[{"from": "find", "ratio": 3}], all=[{"from": "read", "ratio": 0.333}, "b"])
    assert kinds(found, "all") == [(EdgeKind.GATHER, 1 / 3), (EdgeKind.EACH, 1)]
    assert found.streams["all"].rate_per_s == pytest.approx(10)


def test_a_ratio_in_a_join_fans_out_when_it_is_not_deeper() -> None:
    found = flow(find=["a"], read=[{"from": "find", "ratio": 4}], all=["read", {"from": "find", "ratio": 4}])
    assert kinds(found, "all") == [(EdgeKind.EACH, 1), (EdgeKind.FAN_OUT, 4)]


def test_a_ratio_on_a_single_input_thins() -> None:
    found = flow(find=["a"], rare=[{"from": "find", "ratio": 0.3}], after=["rare"])
    assert kinds(found, "rare") == [(EdgeKind.FAN_OUT, 0.3)]
    assert found.streams["after"].rate_per_s == pytest.approx(3)


def test_a_ratio_by_variant_has_the_least_until_a_variant_is_chosen() -> None:
    found = flow(find=["a"], read=[{"from": "find", "ratio": {"v": 3, "w": 4}}], all=[{"from": "read", "gather": True}])
    assert kinds(found, "read") == [(EdgeKind.FAN_OUT, 3)]
    assert kinds(found, "all") == [(EdgeKind.GATHER, 1 / 3)]


def test_branches_of_a_fan_out_by_variant_meet_only_where_their_ratios_always_agree() -> None:
    by_variant = {"v": 3, "w": 4}
    split = {"shape": [{"from": "find", "ratio": by_variant}], "other": [{"from": "find", "ratio": by_variant}]}
    assert not flow(find=["a"], **split, read=["shape", "other"]).problems
    assert not flow(find=["a"], **split, read=[{"from": "shape", "gather": True}, "find"]).problems
    (fewer,) = flow(find=["a"], shape=split["shape"], other=[{"from": "find", "ratio": 3}]).problems
    assert fewer[0] == ("operators", "other", "inputs", 0, "ratio")
    assert "3 here, v 3, w 4 to shape" in fewer[1]
    elsewhere = [{"from": "more", "ratio": 3}]  # as many for v, not for w
    (unlike,) = flow(find=["a"], more=["a"], shape=split["shape"], other=elsewhere, read=["shape", "other"]).problems
    assert "different fan-outs" in unlike[1]


def test_a_written_ratio_of_1_is_a_fan_out() -> None:
    assert kinds(flow(find=["a"], read=[{"from": "find", "ratio": 1}]), "read") == [(EdgeKind.FAN_OUT, 1)]


def test_gathers_close_one_level_at_a_time() -> None:
    found = flow(
        page=["a"],
        line=[{"from": "page", "ratio": 5}],
        word=[{"from": "line", "ratio": 6}],
        sentence=[{"from": "word", "gather": True}],
        text=[{"from": "sentence", "gather": True}, "b"],
    )
    assert kinds(found, "sentence") == [(EdgeKind.GATHER, pytest.approx(1 / 6))]
    assert kinds(found, "text") == [(EdgeKind.GATHER, 1 / 5), (EdgeKind.EACH, 1)]
    assert found.streams["sentence"].rate_per_s == pytest.approx(50)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"x": [{"from": "a", "ratio": 2}], "y": [{"from": "b", "ratio": 2}], "z": ["x", "y"]},
            "z joins requests of different fan-outs: x inside the fan-out of a, y inside the fan-out of b",
        ),
        (
            {"x": [{"from": "a", "ratio": 1}], "z": ["x", "b"]},
            "z joins requests of different fan-outs: x inside the fan-out of a, b outside any",
        ),
        ({"x": [{"from": "a", "ratio": 2}], "z": ["x", "b"]}, "rates differ after ratios: x 20/s, b 10/s"),
        ({"x": ["a"], "z": [{"from": "x", "ratio": 0.5}, "b"]}, "rates differ after ratios: x 5/s, b 10/s"),
        (
            {"x": [{"from": "a", "ratio": 2}], "y": [{"from": "a", "ratio": 3}]},
            "different ratios for one output of a: 3 here, 2 to x",
        ),
        ({"x": [{"from": "a", "gather": True}]}, "gathers a, but no fan-out is open at this point"),
        ({"x": ["y"], "y": ["x"]}, "the operators form a cycle: x -> y -> x"),
    ],
)
def test_refused(inputs: dict[str, list[Any]], message: str) -> None:
    (problem,) = flow(**inputs).problems
    assert message in problem[1]
    assert problem[2]


def test_two_outputs_may_fan_out_by_different_numbers() -> None:
    found = flow(find=["a"], face=[{"from": "find", "ratio": 2, "output": "faces"}], car=[{"from": "find", "ratio": 3}])
    assert not found.problems
    assert found.edges["face"][0].output == "faces"
