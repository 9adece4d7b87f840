"""Who is believed of workers that say unlike things of one operator's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jellybean.serving.gateway.plans.signatures import Signatures, problem_of
from jellybean_agent import GATEWAY, PlanView, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.tiny_models import make_plan

Spec = agent_pb2.TensorSpec
Shape = Sequence[int]


def view_of(root: Path, shares: Mapping[str, float]) -> PlanView:
    routes = [(share, {"double": name}) for name, share in shares.items()]
    return plan_view(make_plan(root, {"double": (["x"], "0" * 64)}, routes, sources={"x": "edge"}))


def signature(shape: Shape, dtype: str = "float32") -> agent_pb2.Signature:
    return agent_pb2.Signature(
        inputs={"x": Spec(dtype=dtype, shape=shape)},
        outputs={GATEWAY: Spec(dtype="float32", shape=[-1, 4])},
    )


def stated(view: PlanView, by_worker: Mapping[str, agent_pb2.Signature]) -> Signatures:
    found = Signatures(view)
    for name, one in by_worker.items():
        found.state(view.workers[name], {"double": one})
    return found


def checked(found: Signatures) -> tuple[str, list[int]] | None:
    """What requests are checked against."""
    agreed = found.agreed("double")
    return None if agreed is None else (agreed.inputs["x"].dtype, list(agreed.inputs["x"].shape))


RIGHT, WRONG = signature([-1, 4]), signature([1, 7], "int64")
THREE = {"edge-1": 0.1, "edge-2": 0.8, "edge-3": 0.1}


@pytest.mark.parametrize("order", [("edge-1", "edge-2", "edge-3"), ("edge-2", "edge-3", "edge-1")])
def test_of_three_the_odd_one_is_left_out(tmp_path: Path, order: Sequence[str]) -> None:
    """Whoever comes first, and though it has most of the requests."""
    view = view_of(tmp_path, THREE)
    found = stated(view, {name: WRONG if name == "edge-2" else RIGHT for name in order})
    assert found.odd() == {"edge-2": "states other inputs or outputs of double than edge-1, edge-3"}
    assert checked(found) == ("float32", [-1, 4])
    assert not found.disputed()


def test_a_large_fleet_that_agrees_is_compared_once(tmp_path: Path) -> None:
    names = [f"edge-{number}" for number in range(1, 301)]
    view = view_of(tmp_path, dict.fromkeys(names, 1 / len(names)))
    found = stated(view, dict.fromkeys(names, RIGHT))
    assert (found.changes, found.odd(), checked(found)) == (1, {}, ("float32", [-1, 4]))
    found.state(view.workers["edge-7"], {"double": WRONG})
    assert (list(found.odd()), checked(found)) == (["edge-7"], ("float32", [-1, 4]))


OTHER_WRONG = signature([-1, 4], "float64")


@pytest.mark.parametrize(
    ("signatures", "shares"),
    [
        ([WRONG, RIGHT], [0.5, 0.5]),
        ([WRONG, RIGHT], [0.95, 0.05]),
        ([RIGHT, WRONG], [0.95, 0.05]),
        ([WRONG, RIGHT, OTHER_WRONG], [0.9, 0.05, 0.05]),
        ([WRONG, RIGHT, WRONG, RIGHT], [0.4, 0.1, 0.4, 0.1]),
        ([WRONG, RIGHT, WRONG, OTHER_WRONG], [0.25, 0.25, 0.25, 0.25]),
    ],
)
@pytest.mark.parametrize("direction", [1, -1])
def test_without_a_majority_nobody_is_left_out_whatever_the_shares(
    tmp_path: Path, signatures: Sequence[agent_pb2.Signature], shares: Sequence[float], direction: int
) -> None:
    names = [f"edge-{number}" for number in range(len(shares))]
    view = view_of(tmp_path, dict(zip(names, shares, strict=True)))
    found = stated(view, dict(list(zip(names, signatures, strict=True))[::direction]))
    assert (found.odd(), checked(found), found.disputed()) == ({}, None, ["double"])


def test_a_majority_leaves_out_all_others(tmp_path: Path) -> None:
    names = [f"edge-{number}" for number in range(5)]
    view = view_of(tmp_path, dict.fromkeys(names, 0.2))
    found = stated(view, dict(zip(names, [WRONG, OTHER_WRONG, RIGHT, RIGHT, RIGHT], strict=True)))
    assert (list(found.odd()), checked(found), found.disputed()) == (names[:2], ("float32", [-1, 4]), [])


def test_a_worker_that_corrects_itself_is_one_of_them_again(tmp_path: Path) -> None:
    view = view_of(tmp_path, THREE)
    found = stated(view, {"edge-2": WRONG, "edge-1": RIGHT, "edge-3": RIGHT})
    changes = found.changes
    found.state(view.workers["edge-2"], {"double": RIGHT})
    assert (found.odd(), found.changes > changes) == ({}, True)
    changes = found.changes
    found.state(view.workers["edge-2"], {"double": RIGHT})
    assert found.changes == changes


@pytest.mark.parametrize(("first", "second", "together"), [([1, 4], [-1, 4], [-1, 4]), ([7, -1], [-1, 4], [-1, -1])])
def test_any_size_contradicts_none_and_narrows_nothing(
    tmp_path: Path, first: Shape, second: Shape, together: Shape
) -> None:
    """A worker that states a size where the others take any would refuse their requests."""
    view = view_of(tmp_path, THREE)
    found = stated(view, {"edge-1": signature(first), "edge-2": signature(second), "edge-3": signature(second)})
    assert (found.odd(), checked(found)) == ({}, ("float32", list(together)))


def test_variants_are_models_of_their_own(tmp_path: Path) -> None:
    """Nobody is left out for them; requests are checked by what most workers take."""
    view = view_of(tmp_path, THREE)
    other = replace(view.workers["edge-3"], variants={"double": "other"})
    view = replace(view, workers={**view.workers, "edge-3": other})
    found = stated(view, {"edge-3": signature([-1, 9]), "edge-1": RIGHT, "edge-2": RIGHT})
    assert (found.odd(), checked(found)) == ({}, ("float32", [-1, 4]))


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (RIGHT, ""),
        (signature([]), ""),
        (signature([1] * 17), "no tensor has"),
        (signature([-2, 4]), "no tensor has"),
        (signature([2**62, 4]), "no tensor has"),
        (signature([-1, 4], "nan"), "no tensor has"),
        (signature([-1, 4], ""), "no tensor has"),
        (agent_pb2.Signature(inputs=RIGHT.inputs), "than the plan has"),
        (agent_pb2.Signature(outputs=RIGHT.outputs), "than the plan has"),
        (
            agent_pb2.Signature(inputs={**RIGHT.inputs, "y": Spec(dtype="float32")}, outputs=RIGHT.outputs),
            "than the plan",
        ),
        (
            agent_pb2.Signature(inputs=RIGHT.inputs, outputs={"triple": Spec(dtype="float32")}),
            "than the plan has",
        ),
    ],
)
def test_a_signature_is_of_the_plan_s_edges_and_of_tensors(
    tmp_path: Path, one: agent_pb2.Signature, problem: str
) -> None:
    view = view_of(tmp_path, THREE)
    found = problem_of(view, view.workers["edge-1"], {"double": one, "triple": WRONG})
    assert (problem in found) if problem else (found == "")
