"""A run whose files are removed under it serves on, starts again what dies, and is replaced and stopped as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from jellybean.serving import Client, read_state
from jellybean.serving.local.replace_plan import apply
from jellybean.serving.local.running import down
from jellybean.serving.run_state import run_of, state_path
from tests.support.killed_run import kill
from tests.support.tiny_models import chain, make_plan, scale
from tests.support.waiting import wait_until

ONES = {"x": np.ones((1, 4), np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the run's folder", "the state folder", "both"])
def test_nothing_is_lost_with_the_files_of_a_run(tmp_path: Path, start, what: str) -> None:
    running = start(tmp_path, chain(tmp_path), detach=True, port=None, insecure=False)
    with Client.of(tmp_path) as before:
        assert before.infer(ONES)
        if what != "the state folder":
            shutil.rmtree(running.state.folder)
        if what != "the run's folder":
            shutil.rmtree(tmp_path / ".jellybean")
        assert before.infer(ONES)
        with Client.of(tmp_path) as client:  # by a new connection
            assert client.infer(ONES)["triple"].tolist() == [[6.0] * 4]
            wait_until(lambda: read_state(tmp_path) is not None)
            for name in ("cloud-1", "gateway"):
                kill(tmp_path, client, name)
            assert client.infer(ONES)["triple"].tolist() == [[6.0] * 4]
    operators = {"double": (["x"], scale(tmp_path / "models/double.onnx", 2.0))}
    assert apply(tmp_path, make_plan(tmp_path, operators, [(1.0, {"double": "edge-1"})], sources={"x": "edge"}))
    with Client.of(tmp_path) as client:
        assert client.infer(ONES)["double"].tolist() == [[2.0] * 4]
    state = run_of(tmp_path)
    assert down(tmp_path) == 0
    assert state is not None and not state.alive()
    assert not state_path(tmp_path).exists() and not Path(running.state.folder).exists()
