"""`jellybean pipeline estimate` from the command line: figures, tables, refusals."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import jellybean

GPT3 = ("--layers", "96", "--hidden", "12288", "--vocab", "51200")


def test_gpt3_before_it_exists() -> None:
    split = ("--tensor", "8", "--pipeline", "16", "--devices", "1024", "--batch", "1536", "--recompute", "full")
    answer = json.loads(jellybean("pipeline", "estimate", *GPT3, *split, "--json").stdout)
    assert answer["parameters"] == 174_590_656_512
    assert answer["bytes_per_parameter"] == 16
    assert answer["transformer"]["heads"] == 96
    assert answer["setup"]["replicas"] == 8
    assert answer["setup"]["microbatches"] == 192
    model, device = answer["model"], answer["device"]
    assert model["total_bytes"] == 16 * answer["parameters"]
    assert device["weights_bytes"] * 6 == device["optimizer_bytes"]
    parts = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
    assert sum(device[part] for part in parts) == pytest.approx(device["total_bytes"])
    by_name = {row["recompute"]: row for row in answer["recomputation"]}
    assert by_name["full"]["total_bytes"] == device["total_bytes"]
    assert by_name["full"]["flops_per_iteration"] == pytest.approx(4.515e18, rel=1e-3)
    assert by_name["none"]["activations_bytes"] > by_name["selective"]["activations_bytes"]
    fits = {row["device"]: row for row in answer["devices"]}
    assert fits["A100 80 GB"]["fits"] and not fits["RTX 4090"]["fits"]
    assert fits["A100 80 GB"]["smallest"]["devices"] == 320
    assert fits["RTX 4090"]["largest_parameters"] == 1.5e9


def test_tables_name_what_fits() -> None:
    small = ("--layers", "24", "--hidden", "1024", "--vocab", "50257", "--seq", "1024", "--states", "6")
    text = jellybean("pipeline", "estimate", *small, "--device-memory", "24 GB").stdout
    assert "0.3538 B parameters" in text
    assert "5.66 GB" in text
    assert "36% full" in text
    assert "1.5 B" in text
    text = jellybean("pipeline", "estimate", *GPT3, "--device-memory", "24GB").stdout
    assert "none fits" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hidden", "1000"), "give --heads"),
        (("--heads", "7"), "not a multiple of 7 heads"),
        (("--tensor", "5"), "96 heads cannot be divided over 5 devices"),
        (("--pipeline", "97"), "too few for 97 pipeline stages"),
        (("--devices", "10", "--tensor", "8"), "not a multiple of tensor x pipeline = 8"),
        (("--devices", "8", "--replicas", "8"), "exclude each other"),
        (("--batch", "3", "--replicas", "2"), "not a multiple of 2 replicas"),
        (("--precision", "int8"), "there are float32"),
        (("--recompute", "some"), "there are none, selective, full"),
        (("--device-memory", "24"), "give a unit"),
        (("--zero", "4"), "zero"),
        (("--states", "nan"), "--states"),
    ],
)
def test_bad_input_is_exit_2(arguments: tuple[str, ...], message: str) -> None:
    answer = json.loads(jellybean("pipeline", "estimate", *GPT3, *arguments, "--json", status=2).stdout)
    assert message in answer["error"]["message"]
