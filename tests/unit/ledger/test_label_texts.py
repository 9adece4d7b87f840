"""Labels are written as text: each is the value that it says, or is refused, and none is judged as another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jellybean.errors import InputError
from jellybean.ledger import read_labels
from jellybean.ledger.labels import _judge
from jellybean_agent import encode_tensor
from jellybean_protos.gateway.v1 import gateway_pb2


def verdict(metric: str, label: str, answer: np.ndarray) -> float:
    response = gateway_pb2.InferResponse(outputs={"y": encode_tensor(answer)})
    return _judge(metric, None, label)(response.SerializeToString())


def test_a_decimal_equals_the_nearest_number_of_the_answers_type() -> None:
    assert verdict("exact_match", "0.1", np.array([0.1], np.float32)) == 1.0
    assert verdict("exact_match", "[0.1, 2]", np.array([[0.1, 2]], np.float16)) == 1.0
    assert verdict("exact_match", "0.1", np.array([0.2], np.float32)) == 0.0
    assert verdict("top1", "2", np.array([[0.1, 0.2, 0.7]], np.float32)) == 1.0


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        *(("top1", label) for label in ("2.7", "-1", "[1, 2]", "NaN", "1e400", "2,0")),
        *(("exact_match", label) for label in ("NaN", "Infinity", "[1, NaN]", f"[{2**63 + 1}, -1]", "1_000")),
    ],
)
def test_what_no_answer_can_equal_is_refused(metric: str, label: str) -> None:
    with pytest.raises(InputError, match="label"):
        verdict(metric, label, np.array([[0.1, 0.2, 0.7]], np.float32))


def test_a_line_with_more_cells_than_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("id,label\na,1\nb,0,5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"labels\.csv:3: more cells than columns"):
        read_labels(tmp_path / "labels.csv")
