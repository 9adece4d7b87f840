"""Labels that come after the answers, by request id, and what is said of the accuracy then."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from jellybean.ledger import wilson
from jellybean.serving import Client
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project

SENT, RIGHT = 60, 30


def row(number: int) -> np.ndarray:
    return np.array([[number, 1, 2, 3]], np.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has answered requests with ids, and one without, and is down again."""
    folder = make_scales_project(tmp_path_factory.mktemp("labels") / "scales")
    jellybean("plan", str(folder))
    jellybean("up", str(folder), "--detach")
    try:
        with Client.of(folder) as client:
            for number in range(SENT):
                client.infer({"x": row(number)}, request_id=f"order-{number}")
            client.infer({"x": row(99)})
    finally:
        jellybean("down", str(folder))
    return folder


def test_labels_tell_that_what_is_served_is_worse_than_planned(served: Path) -> None:
    nothing = jellybean("accuracy", str(served))
    assert f"no labels yet; {SENT} answers wait for theirs" in nothing.stderr
    lines = ["id,label"]
    for number in range(SENT):
        wanted = 6 * row(number)[0] + (number >= RIGHT)
        lines.append(f'order-{number},"{json.dumps(wanted.tolist())}"')
    lines += ["order-0,1", "nobody,2", "order-1,1e400"]
    path = served / "labels.csv"
    path.write_text("\n".join(lines), encoding="utf-8-sig")  # as spreadsheets write it
    told = jellybean("label", str(served), str(path), status=2)
    assert f"{SENT} labelled: {RIGHT} right" in told.stderr
    assert f"labels.csv:{SENT + 2}: request 'order-0' has its label already" in told.stderr
    assert f"labels.csv:{SENT + 3}: no answer to a request 'nobody' is kept" in told.stderr
    found = json.loads(jellybean("accuracy", str(served), "--json", status=5).stdout)
    assert (found["planned"], found["waiting_for_labels"]) == (80.0, 0)
    ((line),) = found["lines"]
    low, high = wilson(RIGHT / SENT, SENT)
    assert (line["labels"], line["accuracy"], line["low"], line["high"]) == (SENT, 50.0, 100 * low, 100 * high)
    table = jellybean("accuracy", str(served), "--by", "plan", status=5)
    assert "planned 80.00 %" in table.stdout
    assert "the newest plan is worse than planned (80.00 %)" in table.stderr


def test_one_label_and_what_cannot_be_one(served: Path) -> None:
    told = jellybean("label", str(served), "--id", "order-1", "--label", "seven", status=2)
    assert "label 'seven' is no number and no list of numbers" in told.stderr
    assert "give a FILE, or --id and --label" in jellybean("label", str(served), "--id", "order-1", status=2).stderr
    (served / "other.csv").write_text("request,class\n1,2\n", encoding="utf-8")
    told = jellybean("label", str(served), str(served / "other.csv"), status=2)
    assert "must name the columns id and label" in told.stderr
    (served / "short.csv").write_text("id,label\norder-2,5\norder-3\n", encoding="utf-8")
    told = jellybean("label", str(served), str(served / "short.csv"), status=2)
    assert "short.csv:3: a line needs an id and a label" in told.stderr


def test_the_interval_holds_for_few_and_extreme_shares() -> None:
    assert wilson(0.0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))  # Wilson 1927; Newcombe 1998, table I
    low, high = wilson(81 / 263, 263)
    assert (low, high) == (pytest.approx(0.2553, abs=2e-4), pytest.approx(0.3662, abs=2e-4))  # Newcombe 1998
    assert math.isclose(wilson(0.5, 10**8)[0], 0.5, abs_tol=1e-3)
