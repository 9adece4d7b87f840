"""A worker's states by stream: a chunk runs with the state that it continues, or not at all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jellybean_agent import InvalidInputError, ModelError, PermanentError, RunOperator, StreamPosition, TensorPort
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.errors import StateMissingError
from jellybean_agent.worker.run_outputs import RunDone
from jellybean_agent.worker.stream_states import StreamStates, check_state_ports

PORT = TensorPort("state", "float32", (-1, 2))


def states(**limits) -> StreamStates:
    return StreamStates({"op": SimpleNamespace(state={"state": "next"})}, {"op": [PORT]}, **limits)  # type: ignore[dict-item]


def run(request: str, after: str = "", stream: str | None = "s") -> RunOperator:
    position = None if stream is None else StreamPosition(stream, after)
    return RunOperator(0, "op", (WorkItem(0, request, 0, (), (), position),))


def answer(kept: StreamStates, request: str, after: str, value: float, stream: str = "s") -> None:
    made = {"next": np.full((1, 2), value, np.float32)}
    kept.keep(run(request, after, stream), RunDone([], [1], 0.0, 0.0, [made]))


def value_of(kept: StreamStates, request: str, after: str, stream: str = "s") -> float:
    (state,) = kept.fed(run(request, after, stream)).items[0].inputs
    return float(state[0, 0])


def test_a_stream_begins_with_zeros_and_goes_on_with_what_the_answered_attempt_made() -> None:
    kept = states()
    assert value_of(kept, "a1", "") == 0.0
    answer(kept, "a1", "", 1.0)
    answer(kept, "a2", "a1", 2.0)
    answer(kept, "a3", "a1", 3.0)  # a retry of the second chunk
    assert (value_of(kept, "b", "a2"), value_of(kept, "b", "a3")) == (2.0, 3.0)


def test_a_late_attempt_changes_nothing() -> None:
    kept = states()
    for number in range(1, 4):
        answer(kept, f"a{number}", f"a{number - 1}" if number > 1 else "", float(number))
    answer(kept, "late", "a1", 9.0)
    assert value_of(kept, "b", "a3") == 3.0
    with pytest.raises(StateMissingError):
        kept.fed(run("b", "late"))


def test_streams_are_bounded_by_number_and_by_idle_time() -> None:
    now_s = [0.0]
    kept = states(max_streams=2, idle_s=10.0, clock=lambda: now_s[0])
    for stream in ("one", "two", "three"):
        answer(kept, f"a-{stream}", "", 1.0, stream)
    assert kept.count("op") == 2
    now_s[0] = 11.0
    answer(kept, "a-four", "", 1.0, "four")
    assert kept.count("op") == 1
    with pytest.raises(StateMissingError, match="stream three"):
        kept.fed(run("b", "a-three", "three"))


def test_a_request_without_a_stream_and_a_state_of_another_shape_are_refused() -> None:
    kept = states()
    with pytest.raises(PermanentError, match="names no stream"):
        kept.fed(run("a", stream=None))
    with pytest.raises(InvalidInputError):
        kept.write("op", StreamPosition("s", "a1"), (np.zeros((1, 3), np.float32),))
    kept.write("op", StreamPosition("s", "a1"), (np.ones((1, 2), np.float32),))
    assert value_of(kept, "b", "a1") == 1.0
    kept.write("op", StreamPosition("s"), ())
    assert kept.count("op") == 0


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        (
            [PORT],
            [TensorPort("other", "float32", (-1, 2))],
            "no output 'next' for the state 'state'; the model has other",
        ),
        ([TensorPort("state", "float32", (-1, -1))], None, "its sizes beside the rows must be fixed"),
        ([TensorPort("state", "float32", ())], None, "its sizes beside the rows must be fixed"),
        ([TensorPort("state", "int64", (-1, 2))], None, "the state 'state' is int64, output 'next' is float32"),
    ],
)
def test_states_that_do_not_fit_the_model(inputs, outputs, reason: str) -> None:
    operator = SimpleNamespace(state={"state": "next"})
    made = outputs or [TensorPort("next", "float32", (-1, 2))]
    with pytest.raises(ModelError, match=reason):
        check_state_ports(operator, inputs, made)  # type: ignore[arg-type]
    check_state_ports(operator, [PORT], [TensorPort("next", "float32", (-1, 2))])  # type: ignore[arg-type]


def test_a_state_of_another_shape_is_not_kept() -> None:
    kept = states()
    made = {"next": np.zeros((1, 3), np.float32)}
    with pytest.raises(PermanentError, match=r"the state for state has shape \[1, 3\]"):
        kept.keep(run("a1"), RunDone([], [1], 0.0, 0.0, [made]))
    assert kept.count("op") == 0
