"""onnxruntime's messages without the position in its source: the names in them stay."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from onnx import helper

from jellybean_agent.execution.providers import CODES, without_position
from tests.support.made_model import model_of, port

CODE = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("/o/graph.cc:1617 void onnxruntime::Graph::Init() ", "Graph output (z) does not exist in the graph."),
        ("/o/model.cc:46 ort::Model::Model(Proto&&, const std::function<void(int)>&) ", "Unknown version (7) here."),
        ("/o/x.h:9 auto ort::A<T>::operator()(int) const [with T = float] ", "Not (really) implemented."),
        ("/o/x.cc:12 ", "This is plain (z) text."),
        ("", "no position (z) at all"),
    ],
)
def test_only_the_position_is_left_out(position: str, message: str) -> None:
    assert without_position(position + message) == message
    assert without_position(CODE + position + message) == CODE + message


def test_a_message_of_this_onnxruntime_names_the_output_that_nothing_makes() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [port("x", ["n", 2])], [port("z", ["n", 2])])
    with pytest.raises(Exception, match="onnxruntime") as raised:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    text = without_position(str(raised.value))
    assert CODES.match(text)
    assert ".cc:" not in text
    assert "(z)" in text


def test_a_long_text_without_a_position_is_searched_in_part() -> None:
    text = "/o/x.cc:1 " + "a::" * 100_000
    assert without_position(text) == "a::" * 100_000
