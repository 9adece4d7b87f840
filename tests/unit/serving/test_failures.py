"""How a refused request ends a command."""

from __future__ import annotations

from jellybean.cli.failures import failure, status_of, text_of
from jellybean.serving import RequestError


def test_a_request_whose_tensors_are_wrong_is_bad_input_and_another_refusal_is_not() -> None:
    wrong = RequestError("INVALID_ARGUMENT", "source x: expected float32 [1, 4], got float32 [1, 5] (for double)")
    assert (status_of(wrong), text_of(wrong)) == (2, wrong.reason)
    assert failure(wrong)["error"]["kind"] == "input"
    late = RequestError("DEADLINE_EXCEEDED", "no answer of double within 1 s")
    assert (status_of(late), text_of(late)) == (1, "no answer of double within 1 s (DEADLINE_EXCEEDED)")
    assert failure(late)["error"]["kind"] == "failure"
