"""Activations that autograd saves, in a file. Needs torch."""

from __future__ import annotations

import resource
import tempfile
import weakref
from contextlib import contextmanager

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.pipeline import CallArguments, TemporaryFileError, activations_in_file, trace

nn = torch.nn
ROWS, SIDE = 8, 256  # activations of 2 MiB


class Net(nn.Module):
    """Values that are transposed, read twice, broadcast, and of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE) for _ in range(3))
        self.made: list[weakref.ref] = []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.transpose(1, 2)).tanh() * x.abs().sqrt() + (x > 0).to(x.dtype)
            self.made.append(weakref.ref(x))
        return x.bfloat16().exp().sum()


def _gradients(net, x):
    net.zero_grad()
    net(x).backward()
    return [value.grad for value in net.parameters()]


def test_gradients_are_the_same():
    net, x = Net(), torch.randn(ROWS, SIDE, SIDE)
    expected = _gradients(net, x)
    with activations_in_file(net.parameters()):
        assert all(torch.equal(one, other) for one, other in zip(_gradients(net, x), expected, strict=True))


def test_memory_is_freed_before_the_backward_pass():
    net, x = Net(), torch.randn(ROWS, SIDE, SIDE)
    loss = net(x)
    assert all(made() is not None for made in net.made[:-1])
    del loss
    net.made.clear()
    with activations_in_file(net.parameters()):
        loss = net(x)
        assert all(made() is None for made in net.made)
        loss.backward()


def test_weights_and_small_tensors_stay_in_memory(monkeypatch):
    wide = nn.Linear(256, 256)  # 256 KiB
    net = nn.Sequential(wide, nn.Tanh(), wide)
    written = []
    monkeypatch.setattr("jellybean.pipeline.torch_saved._write", lambda tensor, file: written.append(tensor.shape))
    with activations_in_file(net.parameters()):
        net(torch.randn(4, 256))
    assert written == []
    with activations_in_file(net.parameters()):
        net(torch.randn(512, 256))
    assert set(written) == {(512, 256)}


@contextmanager
def _files_limited(size):
    """As by `ulimit -f`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 60 * 1024, 2**21 + 100])
def test_a_file_that_cannot_be_written_is_no_error_of_the_model(size):
    """Also if the limit is within what is buffered. The smaller batch of a trace would otherwise be left out."""
    net, x = Net(), torch.randn(ROWS, SIDE, SIDE)
    told = f"cannot be written to {tempfile.gettempdir()}: .*set TMPDIR"
    with _files_limited(size), pytest.raises(TemporaryFileError, match=told), activations_in_file(net.parameters()):
        net(x)
    with _files_limited(size), pytest.raises(TemporaryFileError, match=told):
        trace(net, CallArguments.of([x]))


def test_there_is_no_folder_of_temporary_files(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with (
        pytest.raises(TemporaryFileError, match=r"cannot be written to /nowhere: .*set TMPDIR"),
        activations_in_file([]),
    ):
        pass
