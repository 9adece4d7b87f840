"""`jellybean train` on two processes when something breaks: it goes on, or ends with one message; never hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.support.training_runs import (
    CLASSES,
    SLOW_LOSS,
    checkpoints,
    logged_epochs,
    rank_processes,
    start_training,
    wait_while_it_runs,
    write_project,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
epochs: 6
batch: 32
microbatches: 2
optimizer: {name: adam, lr: 0.01}
devices: 2
schedule: 1f1b
timeout: 20 s
"""
NETS = f"""\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))
{CLASSES}{SLOW_LOSS}"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, DOCUMENT, NETS)


def _start(project: Path, *options: str, slowly: float = 0.0, most: int | None = None) -> subprocess.Popen[str]:
    """`most`: bytes of a file."""
    limit = ["prlimit", f"--fsize={most}"] if most is not None else []
    return start_training(project, "--json", *options, slowly=slowly, wrapper=limit)


def _end(run: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Status, stdout, stderr; its processes are gone."""
    out, said = run.communicate(timeout=600)
    assert "Traceback" not in said, said
    return run.returncode, out, " ".join(said.split())


def _whole(project: Path) -> list[list[float]]:
    """Losses by epoch, from the log of all that was done."""
    epochs = logged_epochs(project)
    assert [epoch["number"] for epoch in epochs] == list(range(1, len(epochs) + 1))
    return [epoch["losses"] for epoch in epochs]


def _wait_for_epoch(project: Path, number: int, run: subprocess.Popen[str]) -> None:
    """Its checkpoint is there, or one after it."""
    folder = checkpoints(project)
    wait_while_it_runs(run, lambda: any(int(path.name[6:]) >= number for path in folder.glob("epoch-*")))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    folder = write_project(tmp_path_factory.mktemp("undisturbed"), DOCUMENT, NETS)
    status, out, _ = _end(_start(folder))
    assert status == 0
    assert [one["losses"] for one in json.loads(out)["epochs"]] == _whole(folder)
    return _whole(folder)


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_stands_still(project, undisturbed, rank, number):
    run = _start(project, slowly=0.3)
    _wait_for_epoch(project, 2, run)
    rank_processes(run)[rank].send_signal(number)
    status, _, said = _end(run)
    assert status == 0
    assert "restarting all ranks from the newest checkpoint (1 of 3)" in said
    assert (f"rank {rank} was killed by SIGKILL" if number == signal.SIGKILL else "raise `timeout`") in said
    assert "resuming from" in said
    assert _whole(project) == undisturbed


def test_a_rank_may_be_busy_for_longer_than_the_timeout(project):
    """The first one, with the test rows: the other waits, as it hears that this one lives."""
    (project / "nets.py").write_text(
        NETS.replace("    time.sleep", "    torch.is_grad_enabled() or time.sleep(26)\n    time.sleep"),
        encoding="utf-8",
    )
    status, out, said = _end(_start(project, "--set", "epochs=1"))
    assert status == 0
    assert "start again" not in said
    assert len(json.loads(out)["epochs"]) == 1


def test_a_function_that_raises_ends_the_run(project):
    """Once for every process would be twice too often; what is raised again is not tried again."""
    odd = "    if outputs.requires_grad and any(SAVED.glob('epoch-*')): raise ValueError('row 7 is odd')\n"
    saved = f"\nimport pathlib\nSAVED = pathlib.Path({str(checkpoints(project))!r})\n"
    (project / "nets.py").write_text(NETS.replace("    time.sleep", odd + "    time.sleep") + saved, encoding="utf-8")
    status, out, said = _end(_start(project))
    assert status == 1
    assert said.count("nets.py:loss failed at") == 1
    assert "row 7 is odd" in said
    assert "row 7 is odd" in json.loads(out)["error"]["message"]
    assert "start again" not in said


def test_what_cannot_be_is_told_once(project):
    status, out, said = _end(_start(project, "--set", "devices=9"))
    assert status == 2
    told = json.loads(out)["error"]
    assert told["kind"] == "input"
    assert told["message"].startswith("the model has 2 layers, too few for 9 stages: it can be cut between ")
    assert said.endswith(f"timing the model's layers {told['message']}")
    assert said.count(told["message"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_and_the_same_command_goes_on(project, undisturbed, number):
    run = _start(project, slowly=0.3)
    _wait_for_epoch(project, 2, run)
    processes = rank_processes(run)
    os.killpg(run.pid, number)
    status, _, said = _end(run)
    assert status == 128 + number
    assert re.search(r" stopped after epoch \d; the same command resumes from it$", said), said
    assert not re.search("terminate called|death signal|elastic|interrupted", said), said
    assert not [one for one in processes if one.is_running()]
    status, out, _ = _end(_start(project))
    assert status == 0
    assert json.loads(out)["epochs"][0]["number"] >= 3
    assert _whole(project) == undisturbed


def test_a_killed_launcher_leaves_nobody_behind_and_two_runs_do_not_mix(project, undisturbed):
    run = _start(project, slowly=2)
    _wait_for_epoch(project, 1, run)
    processes = rank_processes(run)
    assert len(processes) == 2
    for process in processes:
        process.suspend()
    status, _, said = _end(_start(project))
    assert status == 1
    assert "another jellybean train is running" in said
    run.kill()
    run.communicate()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive
    status, _, _ = _end(_start(project))
    assert status == 0
    assert _whole(project) == undisturbed


def test_no_room_for_a_checkpoint_or_a_log(project, undisturbed):
    """A file size limit: every file of a checkpoint is larger than that, later the log alone."""
    small = 2000  # bytes: a manifest and the log's first epochs have room
    status, out, said = _end(_start(project, most=small))
    assert status == 1
    assert "the checkpoint of epoch 1 cannot be written" in json.loads(out)["error"]["message"]
    assert said.count("cannot be written to") == 1
    assert "start again" not in said
    assert _end(_start(project, "--set", "epochs=2"))[0] == 0
    log = project / "training" / "logs" / "epochs.jsonl"
    log.write_text(
        log.read_text(encoding="utf-8").replace('"number"', f'"long": "{40_000 * "x"}", "number"', 1), encoding="utf-8"
    )  # above the limit
    status, out, said = _end(_start(project, most=40_000))
    assert status == 0
    assert said.count("training goes on without these logs") == 1
    assert [one["losses"] for one in json.loads(out)["epochs"]] == undisturbed[2:]
