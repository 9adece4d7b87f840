"""`jellybean pipeline tensor` from the command line: where the choice turns, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import jellybean

SQUARE = ("--in", "4096", "--out", "4096")


def test_a_square_layer_turns_at_2731(tmp_path: Path) -> None:
    picture = tmp_path / "layer.png"
    options = ("--devices", "2", "--batch", "256", "--plot", str(picture), "--json")
    answer = json.loads(jellybean("pipeline", "tensor", *SQUARE, *options).stdout)
    assert picture.stat().st_size > 10_000
    assert answer["data_from_batch"] == 2731
    assert answer["batch"]["least"] == "partition-output"
    assert answer["batch"]["partition-output"]["forward_bytes"] == 4 * 256 * 4096 / 2
    assert answer["batch"]["reduce-output"]["backward_bytes"] == 4 * 256 * 4096 / 2
    rows = {row["batch"]: row for row in answer["batches"]}
    assert rows[256] == answer["batch"]
    assert rows[2731]["least"] == "data"
    text = jellybean("pipeline", "tensor", *SQUARE).stdout
    assert "from batch 2,731 on" in text
    assert "of either kind" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--in", "8"), "--out"),
        (("--in", "8", "--out", "0"), "--out"),
        ((*SQUARE, "--devices", "1"), "devices"),
        ((*SQUARE, "--plot", "layer.txt"), "must end in .svg"),
    ],
)
def test_bad_input_is_exit_2(arguments: tuple[str, ...], message: str) -> None:
    answer = json.loads(jellybean("pipeline", "tensor", *arguments, "--json", status=2).stdout)
    assert message in answer["error"]["message"]
