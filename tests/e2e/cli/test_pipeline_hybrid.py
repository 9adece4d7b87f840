"""`jellybean pipeline hybrid` from the command line: published figures, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import jellybean


def test_alexnet_and_vgg16_on_four_workers(tmp_path: Path) -> None:
    picture = tmp_path / "alexnet.png"
    options = ("--workers", "4", "--batch", "32", "--plot", str(picture), "--json")
    answer = json.loads(jellybean("pipeline", "hybrid", "alexnet", *options).stdout)
    assert picture.stat().st_size > 10_000
    assert round(answer["data_bytes"] / 1e6, 1) == 366.6
    assert round(answer["hybrid_bytes"] / 1e6, 1) == 29.0
    assert [layer["strategy"] for layer in answer["layers"]] == ["data"] * 5 + ["tensor"] * 3
    for layer in answer["layers"]:
        assert layer["hybrid_bytes"] == layer[f"{layer['strategy']}_bytes"]
    text = jellybean("pipeline", "hybrid", "vgg16", "--batch", "64").stdout
    assert "141 MB" in text and "830 MB" in text


def test_strategies_are_chosen() -> None:
    data = json.loads(jellybean("pipeline", "hybrid", "vgg16", "--linear", "data", "--json").stdout)
    assert data["hybrid_bytes"] == data["data_bytes"]
    tensor = json.loads(jellybean("pipeline", "hybrid", "vgg16", "--conv", "tensor", "--json").stdout)
    assert tensor["hybrid_bytes"] == tensor["tensor_bytes"] > data["data_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet50",), "there are alexnet, vgg16"),
        (("alexnet", "--workers", "0"), "workers"),
        (("alexnet", "--conv", "model"), "conv"),
        (("alexnet", "--plot", "bars.txt"), "must end in .svg"),
    ],
)
def test_bad_input_is_exit_2(arguments: tuple[str, ...], message: str) -> None:
    answer = json.loads(jellybean("pipeline", "hybrid", *arguments, "--json", status=2).stdout)
    assert message in answer["error"]["message"]
