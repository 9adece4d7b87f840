"""A run's items stacked, and its outputs split between the items and their downstreams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from jellybean_agent import GATEWAY, Array, OperatorWiring, PermanentError, PortNames, RunOperator
from jellybean_agent.brain.messages import DIRECT_CALL_ROUTE, MAX_CHILDREN, WorkItem
from jellybean_agent.brain.plan_view import OperatorView
from jellybean_agent.execution.executor import RunResult
from jellybean_agent.worker.run_outputs import TensorOutputs, is_direct_call, run_done, run_items


@dataclass
class Doubling:
    """An executor whose model doubles its input; `y` comes with these other outputs."""

    others: dict[str, Array] = field(default_factory=dict)
    runs: list[tuple[tuple[int, ...], int]] = field(default_factory=list)  # shape of the input, requests

    def run(self, inputs: Sequence[Any], requests: int = 1) -> RunResult:
        array = inputs[0] if isinstance(inputs[0], np.ndarray) else np.concatenate(inputs[0])
        self.runs.append((array.shape, requests))
        return RunResult({"y": 2 * array, **self.others}, 0.5, 0.125)


def operator(outputs: tuple[tuple[str, str], ...] = (), **more: Any) -> OperatorView:
    wiring = OperatorWiring(inputs=(("x", "each"),), outputs=outputs)  # type: ignore[arg-type]
    names = more.pop("output_names", {})
    return OperatorView("op", "only", wiring, 0, None, None, names, **more)


def items(*rows: float, route: int = 0, shape: tuple[int, ...] = (1, 2)) -> list[WorkItem]:
    return [
        WorkItem(number, f"r{number}", route, (), (np.full(shape, row, np.float32),)) for number, row in enumerate(rows)
    ]


def firsts(done: Any, downstream: str = GATEWAY) -> list[float]:
    return [float(found.by_downstream[downstream].flat[0]) for found in done.outputs]


def test_items_that_fit_share_a_run() -> None:
    executor: Any = Doubling()
    done = run_items(operator(), executor, items(1, 2, 3))
    assert executor.runs == [((3, 2), 3)]
    assert firsts(done) == [2, 4, 6]
    assert all(found.by_downstream[GATEWAY].shape == (1, 2) for found in done.outputs)
    assert (done.sizes, done.busy_s, done.late_s, done.states) == ([3], 0.5, 0.125, [{}, {}, {}])


@pytest.mark.parametrize("work", [items(1, 2, shape=(2, 2)), items(1), items(1, 2, route=DIRECT_CALL_ROUTE)])
def test_others_run_one_after_another(work: list[WorkItem]) -> None:
    executor: Any = Doubling()
    done = run_items(operator(), executor, work)
    assert [requests for _, requests in executor.runs] == [1] * len(work)
    assert (done.sizes, done.busy_s, done.late_s) == ([1] * len(work), 0.5 * len(work), 0.125 * len(work))
    name = "y" if work[0].route == DIRECT_CALL_ROUTE else GATEWAY
    assert firsts(done, name) == [2 * (number + 1) for number in range(len(work))]


def test_each_downstream_gets_the_output_that_the_plan_names() -> None:
    executor: Any = Doubling({"z": np.full((1, 3), 7, np.float32)})
    found = run_items(operator((("a", "each"), ("b", "each")), output_names={"b": "z"}), executor, items(1))
    assert (firsts(found, "a"), firsts(found, "b")) == ([2.0], [7.0])
    direct = run_items(operator((("a", "each"),)), executor, items(1, route=DIRECT_CALL_ROUTE))
    assert sorted(direct.outputs[0].by_downstream) == ["y", "z"], "a direct call gets all by their own names"
    with pytest.raises(PermanentError, match="no output 'w'; it has y, z"):
        run_items(operator((("a", "each"),), output_names={"a": "w"}), executor, items(1))


@pytest.mark.parametrize(
    ("array", "kind"), [(np.float32(3), "each"), (np.zeros((MAX_CHILDREN + 1, 0), np.float32), "fan_out")]
)
def test_outputs_that_cannot_be_split_into_requests(array: Any, kind: str) -> None:
    executor: Any = Doubling({"z": np.asarray(array)})
    view = operator((("a", kind),), output_names={"a": "z"})
    with pytest.raises(PermanentError, match=r"output z of shape .* cannot be split into requests"):
        run_items(view, executor, items(1))


def test_the_most_children_may_be_fanned_out() -> None:
    executor: Any = Doubling({"z": np.zeros((MAX_CHILDREN, 0), np.float32)})
    done = run_items(operator((("a", "fan_out"),), output_names={"a": "z"}), executor, items(1))
    assert done.outputs[0].rows("a") == MAX_CHILDREN


def fanned(counts: Any) -> tuple[Any, OperatorView]:
    """A run of three requests that fans six rows out, with the model's count of each."""
    executor: Any = Doubling({"z": np.arange(6, dtype=np.float32).reshape(6, 1), "n": counts})
    ports = PortNames(output="z", rows="n")
    return executor, operator((("a", "fan_out"),), output_names={"a": "z"}, ports=ports)


def test_a_fan_out_in_a_batch_is_split_by_the_models_counts() -> None:
    executor, view = fanned(np.array([2, 0, 4]))
    done = run_items(view, executor, items(1, 2, 3))
    assert [found.rows("a") for found in done.outputs] == [2, 0, 4]
    assert [found.by_downstream["a"].ravel().tolist() for found in done.outputs] == [[0, 1], [], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (np.array([2, 4]), "is not the number of rows of each of the 3 requests"),
        (np.array([2.0, 0.0, 4.0], np.float32), "is not the number of rows"),
        (np.array([7, -1, 0]), "is not the number of rows"),
        (np.array([2, 0, 3]), "has 6 rows, the model counts 5 for the 3 requests"),
    ],
)
def test_counts_that_do_not_fit(counts: Array, reason: str) -> None:
    executor, view = fanned(counts)
    with pytest.raises(PermanentError, match=reason):
        run_items(view, executor, items(1, 2, 3))


def test_a_fan_out_in_a_batch_needs_counts() -> None:
    executor: Any = Doubling()
    with pytest.raises(PermanentError, match="no output counts its rows of each of the 2 requests"):
        run_items(operator((("a", "fan_out"),)), executor, items(1, 2))
    executor = Doubling()
    view = operator((("a", "fan_out"),), ports=PortNames(rows="n"))
    with pytest.raises(PermanentError, match="no output 'n'; it has y"):
        run_items(view, executor, items(1, 2))


def test_states_are_split_like_outputs() -> None:
    state = np.arange(3, dtype=np.float32).reshape(3, 1)
    executor: Any = Doubling({"next": state})
    done = run_items(operator(state={"before": "next"}), executor, items(1, 2, 3))
    assert [float(found["next"][0, 0]) for found in done.states] == [0.0, 1.0, 2.0]
    direct = run_items(operator(state={"before": "next"}), executor, items(1, route=DIRECT_CALL_ROUTE))
    assert direct.states == []


def test_the_results_of_a_run_elsewhere_are_one_for_all_or_one_each() -> None:
    run = RunOperator(1, "op", tuple(items(1, 2)))
    whole = run_done(operator(), run, [RunResult({"y": np.array([[1.0], [2.0]])}, 0.5, 0.25)])
    assert (firsts(whole), whole.sizes, whole.busy_s, whole.late_s) == ([1.0, 2.0], [2], 0.5, 0.25)
    each = run_done(operator(), run, [RunResult({"y": np.full((1, 1), value)}, 0.5) for value in (3.0, 4.0)])
    assert (firsts(each), each.sizes, each.busy_s) == ([3.0, 4.0], [1, 1], 1.0)
    assert not is_direct_call(run)
    assert is_direct_call(RunOperator(1, "op", tuple(items(1, route=DIRECT_CALL_ROUTE))))


def test_outputs_give_all_of_a_tensor_or_one_row() -> None:
    outputs = TensorOutputs({"a": np.array([[1.0], [2.0], [3.0]])})
    assert outputs.rows("a") == 3
    assert outputs.take("a", None).shape == (3, 1)
    assert outputs.take("a", 1).tolist() == [[2.0]]
