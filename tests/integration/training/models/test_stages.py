"""Models given as stages, which are not traced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.skips import Absent

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.errors import JellyBeanError
from jellybean.pipeline import CallArguments, StageChain, stage_graph
from jellybean.training import ReadPlan, find_graphs
from jellybean.training.data.rows import MicrobatchIndex
from jellybean.training.data.sampler import MicrobatchSampler
from tests.integration.training.models.stages_case import LR, ROWS, TrainStages, data, document, stages
from tests.integration.training.models.whole_model import measured
from tests.integration.training.ranks import run_ranks
from tests.support.training_inputs import load_training_inputs

CASES = [TrainStages("1f1b", 2), TrainStages("zb-v", 2), TrainStages("chimera", 2)]


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_one_update_equals_one_process():
    loss, expected, evaluation = _one_process()
    for case, found in zip(CASES, run_ranks(2, CASES), strict=True):
        assert sum(sum(own["losses"].values()) for own in found) == pytest.approx(loss, rel=1e-12), case
        state = found[0]["state"]
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            if not (case.schedule == "chimera" and name == "0.calls"):  # each of its two copies counts its own calls
                assert torch.allclose(state[name], value, rtol=1e-10, atol=1e-12), (case, name)
        assert found[0]["evaluation"] == pytest.approx(evaluation, rel=1e-12), case


def test_a_module_that_no_tracer_follows_is_refused_without_stages():
    with pytest.raises(JellyBeanError, match=r"neither torch\.fx nor torch\.export can follow"):
        find_graphs(_Deciding(StageChain(stages())), CallArguments.of((), data()["train"][0]))


def test_submodules_that_no_tracer_follows_are_called_as_they_are():
    graphs = find_graphs(_Whole(StageChain(stages())), CallArguments.of((), data()["train"][0]))
    assert graphs.training.called.names == {f"module.chain.{number}" for number in range(4)}


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ([torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)], r"stage 1 \(Linear\) cannot be run: mat1 and mat2"),
        ([torch.nn.LSTM(2, 2), torch.nn.Linear(2, 2)], "stage 0 returns tuple; only a tensor or a tuple of tensors"),
    ],
)
def test_stages_that_do_not_fit_are_named(modules, told):
    with pytest.raises(JellyBeanError, match=told):
        stage_graph(StageChain(modules), CallArguments.of([torch.zeros(4, 3, 2)]))


class _Whole(torch.nn.Module):
    def __init__(self, chain: StageChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, tokens, mask):
        return self.chain(tokens, mask)


class _Deciding(_Whole):
    """Asks its weights what to do, where it must be cut."""

    def forward(self, tokens, mask):
        hidden, mask = self.chain.get_submodule("0")(tokens, mask)
        for number in (1, 2, 3) if self.chain.get_submodule("1").up.weight.detach().mean() < 1 else (1, 2):
            hidden, mask = self.chain.get_submodule(f"{number}")(hidden, mask)
        return self.chain.get_submodule("4")(hidden, mask)


def _one_process():
    inputs = load_training_inputs(document("gpipe", 1), Path())
    module = inputs.module
    sampler = MicrobatchSampler(ROWS, ROWS, 4, 1)
    reader, total = inputs.data.train.read(ReadPlan(sampler)), 0.0
    for microbatch in range(4):
        index = MicrobatchIndex(0, microbatch)
        outputs = module(*reader.inputs(index, (0, 1)))
        share = reader.weight(index) / reader.update_weight(index)
        loss = inputs.loss(outputs, reader.target(index, torch.device("cpu"))) * share
        loss.backward()
        total += float(loss.detach())
    with torch.no_grad():
        for value in module.parameters():
            if value.grad is not None:
                value.sub_(LR * value.grad)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    return total, state, measured(module, inputs)
