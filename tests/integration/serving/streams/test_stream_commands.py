"""Commands on streams: `plan` knows states, `infer --stream` sends one, `bench` sends those of the plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import jellybean, jellybean_process
from tests.support.streams_project import make_streams_project, uninterrupted


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project, served on this machine."""
    folder = make_streams_project(tmp_path_factory.mktemp("commands"))
    jellybean("plan", str(folder), "--set", "slo.accuracy=90")
    jellybean_process("up", str(folder), "--detach")
    yield folder
    jellybean("down", str(folder))


@pytest.mark.slow
def test_the_rows_of_a_file_are_sent_as_a_stream(project: Path) -> None:
    rows = np.load(project / "data/heldout.npz")["x"]
    command = ["infer", str(project), "--input", f"x={project}/data/heldout.npz#x", "--rows", "--json"]
    for _ in range(2):  # it begins anew each time
        answers = json.loads(jellybean(*command, "--stream", "me").stdout)
        found = np.concatenate([np.array(answer["remember"]) for answer in answers])
        np.testing.assert_allclose(found, uninterrupted(rows[:, None]), atol=1e-5)
    refused = jellybean(*command, status=2).stdout
    assert "remember keeps a state by stream: say which stream this is, and that it begins" in refused


def test_another_rate_is_another_number_of_streams(project: Path) -> None:
    found = json.loads(
        jellybean("plan", str(project), "--set", "slo.accuracy=90", "--rate-scale", "2", "--dry-run", "--json").stdout
    )
    assert found["overrides"] == ["slo.accuracy=90", "sources.x.rate=40/s", "sources.x.streams=8"], found


def test_bench_sends_the_streams_of_the_plan(project: Path) -> None:
    """As many as the plan has, each chunk in its place: else requests fail."""
    found = json.loads(jellybean("bench", str(project), "--duration", "2", "--json").stdout)
    assert found["completed"] == found["offered"] > 0 and found["failed"] == 0, found
