"""Adapters put into a model: which layers get them, from which weights, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.models.zoo import declare_torchvision

declare_torchvision()
peft = pytest.importorskip("peft", reason=NotInstalled.PEFT)

from safetensors.torch import load_file, save_file
from torch import nn

from jellybean.documents import LoraSpec, OptimizerSpec, TrainingDocument
from jellybean.documents.training import OptimizerGroup
from jellybean.training import TrainingError, read_inputs, write_model
from jellybean.training.models.lora import is_adapted, with_adapters

HERE = "tests.unit.training.test_lora"


class Net(nn.Module):
    """Two blocks of layers with the same names; the head's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"query": nn.Linear(4, 4), "value": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
            for _ in range(2)
        )
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.words(rows)
        for block in self.blocks:
            hidden = block["norm"](hidden + torch.tanh(block["query"](hidden)) * block["value"](hidden))
        return self.head(hidden.mean(1))


def net() -> nn.Module:
    return Net()


def adapted_net() -> nn.Module:
    return peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["query"]))


def mixed_net() -> nn.Module:
    return peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["query"]), mixed=True)


def data() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows = torch.arange(24).reshape(8, 3) % 7
    return {"train": (rows, rows[:, 0]), "test": (rows, rows[:, 0])}


def _document(model: str = "net", groups: tuple[OptimizerGroup, ...] = (), **more: object) -> TrainingDocument:
    optimizer = OptimizerSpec(name="sgd", lr=0.1, groups=groups)
    return TrainingDocument(
        kind="Training", model=f"{HERE}:{model}", data=f"{HERE}:data", epochs=1, batch=4, optimizer=optimizer, **more
    )


def _adapted_layers(*targets: str) -> set[str]:
    module = with_adapters(Net(), _document(lora=LoraSpec(targets=targets)))
    names = (name for name, _ in module.get_base_model().named_parameters() if ".lora_" in name)
    return {name.partition(".lora_")[0] for name in names}


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (("query",), {"blocks.0.query", "blocks.1.query"}),
        (("*.query",), {"blocks.0.query", "blocks.1.query"}),
        (("1.*",), {"blocks.1.query", "blocks.1.value"}),
        (("blocks.0.*", "*.1.value"), {"blocks.0.query", "blocks.0.value", "blocks.1.value"}),
    ],
)
def test_targets(targets, layers):
    assert _adapted_layers(*targets) == layers


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (("qeury",), "no layer is named like 'qeury'; did you mean 'query'"),
        (("query", "attention"), "like 'attention'; it has words, query, value, head"),
        (("norm",), "'norm' names only LayerNorm; LoRA adapts"),
        (("head",), "head has the weight of words, so that an adapter cannot be merged"),
        (("all-linear",), "head has the weight of words"),
        (None, "peft knows no targets for a Net: write `targets`"),
    ],
)
def test_targets_that_do_not_fit(targets, told):
    with pytest.raises(TrainingError, match=re.escape(told)):
        with_adapters(Net(), _document(lora=LoraSpec(targets=targets)))


def test_all_linear_layers_but_the_output():
    module = nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(4, 2), nn.Linear(3, 2))
    module.get_output_embeddings = lambda: module[2]
    found = with_adapters(module, _document(lora=LoraSpec(targets=("all-linear",))))
    assert {n.partition(".lora_")[0] for n, _ in module.named_parameters() if ".lora_" in n} == {"0"}
    assert is_adapted(found)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (_document("adapted_net", lora=LoraSpec()), "which has adapters already: remove `lora`"),
        (_document("mixed_net"), "PeftMixedModel that cannot be saved and merged into the model; one of LoRA can"),
    ],
)
def test_models_that_have_adapters(tmp_path, document, told):
    with pytest.raises(TrainingError, match=re.escape(told)):
        read_inputs(document, tmp_path)


def test_weights_of_a_file_are_those_of_the_model_without_adapters(tmp_path):
    """The model takes no memory until they are read; adapters do, and are the same each time."""
    torch.manual_seed(9)
    state = {name: value.clone() for name, value in Net().state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    groups = (OptimizerGroup(match="*.lora_B.*", lr=0.5),)
    document = _document(weights="weights.safetensors", lora=LoraSpec(targets=("query",)), groups=groups)

    inputs, again = read_inputs(document, tmp_path), read_inputs(document, tmp_path)

    module, other = inputs.module, again.module
    own = {name: value for name, value in module.named_parameters() if value.requires_grad}
    assert own.keys() == {f"blocks.{n}.query.lora_{part}.default.weight" for n in (0, 1) for part in "AB"}
    assert all(torch.equal(value, other.get_parameter(name)) for name, value in own.items())
    assert all(value.any() for name, value in own.items() if ".lora_A." in name)
    assert module.words.weight.untyped_storage().nbytes() == 4
    inputs.pretrained.fill(module.parameters())
    assert torch.equal(module.blocks[0]["query"].base_layer.weight, state["blocks.0.query.weight"])
    optimizer = inputs.optimizer.make(own)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.1, 0.5]
    with pytest.raises(TrainingError, match="return that model, and write `lora`"):
        read_inputs(_document("adapted_net", weights="weights.safetensors"), tmp_path)


def test_the_model_is_written_merged_and_the_adapter_beside_it(tmp_path):
    torch.manual_seed(4)
    base = Net().eval()
    state = {name: value.clone() for name, value in base.state_dict().items()}
    module = with_adapters(base, _document(lora=LoraSpec(rank=2, targets=("query",)))).eval()
    for name, value in base.named_parameters():
        if ".lora_B." in name:
            nn.init.normal_(value)
    rows = data()["train"][0]
    expected = module(rows).detach()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "left.txt").touch()

    found = write_model(module, tmp_path)

    assert torch.allclose(found(rows), expected, atol=1e-6)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == state.keys()
    assert {name for name in state if not torch.equal(state[name], written[name])} == {
        f"blocks.{number}.query.weight" for number in (0, 1)
    }
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {p.name for p in (tmp_path / "adapter").iterdir()}
    assert not (tmp_path / "adapter" / "left.txt").exists()
    again = Net().eval()
    again.load_state_dict(state)
    assert torch.allclose(peft.PeftModel.from_pretrained(again, tmp_path / "adapter")(rows), expected, atol=1e-6)
    write_model(Net(), tmp_path)
    assert not (tmp_path / "adapter").exists()
