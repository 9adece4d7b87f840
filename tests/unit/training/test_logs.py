"""Logs of a killed and resumed run: every epoch once, readable by TensorBoard; write errors are not fatal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import SyncSpec
from jellybean.training import EpochResult, TrainedRun, TrainingLogs, batch_note, idle_note, line, summary
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.logs import staleness_bound
from jellybean.training.train import left_s


def _epoch(number: int, loss: float) -> EpochResult:
    return EpochResult(number, 100, [loss, loss / 2], 50.0 + number, loss, 10.0, 0.2, 0.1, 3.0)


def _run(folder, *epochs: EpochResult) -> list[str]:
    said: list[str] = []
    logs = TrainingLogs(folder, said.append)
    for epoch in epochs:
        logs.add(epoch)
    logs.close()
    return said


def test_epochs_that_are_done_again_are_told_once(tmp_path):
    assert not _run(tmp_path, _epoch(1, 9.0), _epoch(2, 8.0), _epoch(3, 7.0))
    with (tmp_path / "epochs.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"number": 4, "los')  # what a kill leaves
    assert not _run(tmp_path, _epoch(3, 6.0), _epoch(4, 5.0))
    lines = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["number"], line["losses"][0]) for line in lines] == [(1, 9.0), (2, 8.0), (3, 6.0), (4, 5.0)]


def test_tensorboard_reads_them(tmp_path):
    """Steps are samples, so the batch size does not change the axis; repeated epochs replace earlier ones."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=NotInstalled.TENSORBOARD
    )
    _run(tmp_path, _epoch(1, 9.0), _epoch(2, 8.0), _epoch(3, 7.0))
    _run(tmp_path, _epoch(3, 6.0))
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    steps = [(event.step, event.value) for event in read.Scalars("loss")]
    assert steps == [(50, 9.0), (100, 4.5), (150, 8.0), (200, 4.0), (250, 6.0), (300, 3.0)]
    assert [event.value for event in read.Scalars("accuracy")] == [51.0, 52.0, 53.0]
    assert {"idle/measured", "idle/predicted", "samples per s", "test loss"} <= set(read.Tags()["scalars"])


def test_what_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "logs").write_text("in the way", encoding="utf-8")
    (told,) = _run(tmp_path / "logs", _epoch(1, 9.0), _epoch(2, 8.0))
    assert "training goes on without these logs" in told


def test_idle_time_far_above_the_prediction_is_explained_unless_other_programs_run():
    epoch = replace(_epoch(1, 9.0), predicted_idle=0.02)
    assert not idle_note(replace(epoch, idle=0.25), load=2.0, cores=2)
    assert not idle_note(replace(epoch, idle=0.45), load=4.0, cores=2)
    assert "wait for 45% of the time, and 2% is predicted" in idle_note(replace(epoch, idle=0.45), load=2.0, cores=2)


def test_an_epoch_names_both_losses_and_the_end_names_the_model():
    epoch = replace(_epoch(1, 9.0), test_loss=5.5, metrics={"accuracy": 51.0, "f1": None})
    assert line(epoch, 3).startswith("epoch 1/3: training loss 6.7500, test loss 5.5000, accuracy 51.00, 10 samples/s,")
    model = Path("net/training/model.safetensors")
    assert summary(TrainedRun([epoch], 1, {}), model) == (
        "trained 1 epoch: training loss 6.7500, test loss 5.5000, accuracy 51.00; the model is "
        "net/training/model.safetensors"
    )
    second = replace(epoch, number=2, test_loss=7.5)
    assert summary(TrainedRun([epoch, second], 2, {}), model).startswith("trained 2 epochs: training loss 6.7500, test")
    resumed = [replace(epoch, number=3), replace(epoch, number=4)]
    assert summary(TrainedRun(resumed, 4, {}), model).startswith("trained 2 epochs (3 to 4): training loss 6.7500")
    assert summary(TrainedRun(resumed[1:], 4, {}), model).startswith("trained 1 epoch (4): training loss 6.7500")
    assert summary(TrainedRun([epoch, second], 1, {**epoch.metrics, "loss": 5.5}), model) == (
        "trained 2 epochs; the model of epoch 1 (test loss 5.5000, accuracy 51.00) is net/training/model.safetensors"
    )
    assert "net/training/model.safetensors" in summary(TrainedRun([], 2, {}), model)


def test_a_batch_of_more_rows_than_there_are():
    assert batch_note(MicrobatchSampler(1200, 2000, 4, 1)) == (
        "batch is 2,000 and there are 1,200 training rows: each epoch is one update of them"
    )
    assert not batch_note(MicrobatchSampler(1200, 1200, 4, 1))
    assert not batch_note(MicrobatchSampler(1000, 2000, 4, 1, period=1))


def test_rows_that_make_no_update_are_counted():
    assert not batch_note(MicrobatchSampler(20, 8, 4, 1))  # the last update has a row for each micro-batch
    assert batch_note(MicrobatchSampler(19, 8, 4, 1)) == (
        "3 rows of 19, others in each epoch, are left out: the last update would have fewer rows than its 4 "
        "micro-batches; take fewer `microbatches`, or another `batch`"
    )
    assert batch_note(MicrobatchSampler(17, 8, 1, 2)).startswith("1 row of 17, others in each epoch, is left out")
    assert batch_note(MicrobatchSampler(1200, 2000, 4, 1, period=1)) == (
        "200 rows of 1,200, others in each epoch, are left out: an update takes 500, and none takes fewer"
    )


def test_time_left_is_of_the_last_five_epochs():
    """An epoch of 60 s, long ago; then 2, 4, 2, 4 and 8 s."""
    assert left_s([0.0, 60.0], 3) == 180.0
    assert left_s([0.0, 60.0, 62.0, 66.0, 68.0, 72.0, 80.0], 3) == 12.0


def test_the_bound_on_staleness_is_told_as_workers_keep_it():
    """A worker that is `staleness` updates ahead may begin one more, and then is one more ahead."""
    assert staleness_bound(SyncSpec(way="parameter-server", mode="asp", staleness=2)) == (
        "; a worker begins no update while it has completed more than 2 more than the slowest"
    )
    assert staleness_bound(SyncSpec(way="parameter-server", mode="asp")) == ""
