"""Answers as `infer` prints them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jellybean.cli.serving.infer import readable
from jellybean.errors import JellyBeanError
from jellybean.serving import Client, RequestError
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project


def test_answers_are_numbers_unless_they_are_called_text() -> None:
    bytes_of_text = np.frombuffer("Käse\n8.91\0\0".encode(), np.uint8)[np.newaxis]
    assert readable(bytes_of_text, is_text=True) == "Käse\n8.91"
    assert readable(bytes_of_text[:, :2]) == "[[ 75 195]]"
    assert readable(np.array([7])) == "7"
    assert readable(np.zeros((1, 0), np.uint8), is_text=True) == ""


def test_what_is_no_text_is_said() -> None:
    with pytest.raises(JellyBeanError, match=r"text is UTF-8 bytes \(uint8\), not int64"):
        readable(np.array([1, 2]), is_text=True)


@pytest.mark.parametrize(
    ("error", "options", "said"),
    [
        (
            RequestError("INVALID_ARGUMENT", "source x: got int64 [1, 2] (for first); send array.astype('float32')"),
            ("--input", "x=[1, 2]"),
            "source x: got int64 [1, 2] (for first); write --input 'x=float32:[1, 2]'",
        ),
        (
            RequestError("UNIMPLEMENTED", "leave out stream and parameter sequence_id"),
            ("--input", "x=[1, 2]", "--stream", "me"),
            "leave out --stream",
        ),
    ],
)
def test_a_refusal_is_said_in_options_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RequestError, options: tuple[str, ...], said: str
) -> None:
    def refused(*_arguments: object, **_more: object) -> None:
        raise error

    project = make_scales_project(tmp_path / "scales")
    monkeypatch.setattr(Client, "of", lambda _directory, workflow: Client("unix:none"))
    monkeypatch.setattr(Client, "infer", refused)
    assert said in " ".join(jellybean("infer", str(project), *options, status=2).stderr.split())


def _answered_but_row_2(project: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Arguments of `infer` with four rows, of which the gateway answers the first two."""
    np.save(project / "rows.npy", np.arange(4, dtype=np.float32).reshape(4, 1))

    def infer(_client: Client, inputs: dict[str, np.ndarray], **_options: object) -> dict[str, np.ndarray]:
        if inputs["x"].item() >= 2:
            raise RequestError("UNAVAILABLE", "no worker is there")
        return {"y": 10 * inputs["x"]}

    monkeypatch.setattr(Client, "of", lambda _directory, workflow: Client("unix:none"))
    monkeypatch.setattr(Client, "infer", infer)
    return "infer", str(project), "--input", f"x={project / 'rows.npy'}", "--rows"


def test_answers_before_a_row_that_fails_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = _answered_but_row_2(make_scales_project(tmp_path / "scales"), monkeypatch)
    result = jellybean(*arguments, status=1)
    assert result.stdout.splitlines() == ["row 0, y: 0.0", "row 1, y: 10.0"]
    assert "row 2 has no answer, and those after it were not sent: no worker is there" in result.stderr
    found = json.loads(jellybean(*arguments, "--json", status=1).stdout)
    assert found["answers"] == [{"y": [[0.0]]}, {"y": [[10.0]]}]
    assert found["error"]["kind"] == "failure"
