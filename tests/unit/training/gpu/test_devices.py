"""Devices of ranks: GPUs of their own, the CPU, or shared GPUs on request; too few are refused."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import TrainingError
from jellybean.training.processes.devices import (
    DeviceChoice,
    check_same_kind,
    choose_device,
    local_workers,
    set_device,
)
from jellybean.training.processes.ranks import translated_errors


def test_a_gpu_for_each_process():
    for asked in ("auto", "cuda"):
        choice = choose_device(asked, local_rank=1, local_ranks=2, gpus=2)
        assert (choice.device, choice.shared) == (torch.device("cuda", 1), False)
        assert choice.backend == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(("asked", "gpus"), [("auto", 0), ("cpu", 0), ("cpu", 8)])
def test_the_cpu(asked, gpus):
    choice = choose_device(asked, local_rank=3, local_ranks=4, gpus=gpus)
    assert (choice.device, choice.backend) == (torch.device("cpu"), "gloo")


def test_fewer_gpus_than_processes_are_refused():
    with pytest.raises(TrainingError, match=r"4 processes on this machine and 3 GPUs: each needs its own.*device=cpu"):
        choose_device("auto", local_rank=0, local_ranks=4, gpus=3)


@pytest.mark.parametrize(
    ("first_rank", "local_ranks", "workers", "expected"),
    [
        (0, 3, 2, 2),  # torchrun on one machine: two workers and a server
        (0, 2, 2, 2),  # our launcher, or a machine without servers
        (2, 3, 4, 2),  # the second machine, with the last two workers and a server
        (4, 2, 4, 0),  # a machine of servers
    ],
)
def test_parameter_servers_need_no_gpu(first_rank, local_ranks, workers, expected):
    assert local_workers(first_rank, local_ranks, workers) == expected


def test_a_missing_gpu_is_refused():
    with pytest.raises(TrainingError, match="torch finds no GPU on this machine: --set device=cpu"):
        choose_device("cuda", local_rank=0, local_ranks=1, gpus=0)


def test_gpus_are_shared_on_request():
    choices = [choose_device("cuda", local_rank=rank, local_ranks=4, gpus=2) for rank in range(4)]
    assert [choice.device.index for choice in choices] == [0, 1, 0, 1]
    assert all(choice.shared and choice.backend == "gloo" for choice in choices)


def test_ranks_on_different_kinds_of_devices_are_refused():
    store = torch.distributed.HashStore()
    cpu, gpu = choose_device("auto", 0, 1, 0), choose_device("auto", 0, 1, 1)
    store.set("device-0", str(gpu))
    with pytest.raises(TrainingError, match="rank 0 computes on a GPU of its own and rank 1 on the CPU: all need the"):
        check_same_kind(store, 1, 2, cpu)
    check_same_kind(store, 1, 2, gpu)


@pytest.mark.parametrize(
    ("given", "used", "warns"), [(None, "32", False), ("16", "16", False), ("1", "32", True), ("many", "32", True)]
)
def test_too_few_hardware_queues_are_raised(monkeypatch, capsys, given, used, warns):
    """torch.cuda.set_device needs a GPU, and the variable must be there before."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    found = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda own: found.append(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]))
    set_device(DeviceChoice(torch.device("cuda", 0)))
    assert found == [used]
    told = capsys.readouterr().err
    assert (f"CUDA_DEVICE_MAX_CONNECTIONS is {given}, with" in told) == ("this run uses 32: unset it" in told) == warns


def test_a_full_gpu_is_reported_and_not_retried():
    with (
        pytest.raises(TrainingError, match="the GPU's memory is full: use more devices") as caught,
        translated_errors(1.0),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert caught.type is TrainingError  # of which a restart would not help
    assert "Tried to allocate" in str(caught.value)
