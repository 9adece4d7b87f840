"""Export of a trained model: equal to torch, one line added to workflow.yaml, refused if it does not fit."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents import ExportSpec, read_file
from jellybean.pipeline import CallArguments
from jellybean.training import TrainingError, export_variant
from jellybean.training.export import try_export
from jellybean.training.models.score_forms import Form, form_of
from tests.support.exported_models import sklearn_classifier

WORKFLOW = """\
# what stays as it is
kind: Workflow
name: little
sources:
  picture: {tier: edge, rate: 10/s, message: 1.5 KiB}
operators:
  other:
    inputs: [picture]
    variants:
      one: {model: models/one.onnx}   # of another operator
  shape:          # looks
    inputs: [picture]
    variants:
      small: {model: models/small.onnx}

# the end
slo: {accuracy: 50}
"""
SPEC = ExportSpec(operator="shape", variant="tuned", model="models/tuned.onnx")


def _net(width: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.Dropout(0.5), torch.nn.Tanh())


def _rows(dtype: torch.dtype = torch.float32) -> CallArguments:
    return CallArguments.of([torch.randn(9, 4, dtype=dtype)])


@pytest.fixture
def project(tmp_path):
    (tmp_path / "models").mkdir()
    with pytest.warns(DeprecationWarning):
        torch.onnx.export(
            _net(),
            (torch.zeros(2, 4),),
            str(tmp_path / "models/small.onnx"),
            input_names=["crops"],
            output_names=["scores"],
            dynamic_axes={"crops": {0: "n"}, "scores": {0: "n"}},
            dynamo=False,
        )
    (tmp_path / "workflow.yaml").write_text(WORKFLOW, encoding="utf-8")
    return tmp_path


def test_one_more_variant(project):
    first = export_variant(_net(), SPEC, project, _rows())
    assert first.max_difference <= 1e-4
    line = f"      tuned: {{model: models/tuned.onnx, sha256: {first.sha256}}}\n"
    small = "      small: {model: models/small.onnx}\n"
    assert (project / "workflow.yaml").read_text(encoding="utf-8") == WORKFLOW.replace(small, small + line)
    assert hashlib.sha256((project / "models/tuned.onnx").read_bytes()).hexdigest() == first.sha256
    again = export_variant(_net(), SPEC, project, _rows())
    assert again.sha256 != first.sha256
    variants = read_file(project / "workflow.yaml").data["operators"]["shape"]["variants"]
    assert variants["tuned"]["sha256"] == again.sha256
    assert list(variants) == ["small", "tuned"]
    assert not list(project.rglob(".*"))


class _Pooled(torch.nn.Module):
    """Four numbers as four steps, through a layer, to scores."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.stem, self.layer, self.head = torch.nn.Linear(1, 8), layer, torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.stem(x.unsqueeze(-1)))
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(1))


class _Attends(torch.nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)


class _Fourier(torch.nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).abs()  # no counterpart in ONNX 17


class _FixedRows(torch.nn.Module):
    def forward(self, x):
        return x.reshape(2, -1, 8) if len(x) == 2 else x


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True),
        torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
        _Attends(8, 2, batch_first=True),
        torch.nn.LSTM(8, 8, batch_first=True),
        torch.nn.utils.spectral_norm(torch.nn.Linear(8, 8)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_with_a_path_of_their_own_in_evaluation_are_exported(project, layer):
    assert export_variant(_Pooled(layer), SPEC, project, _rows()).max_difference <= 1e-4
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_cannot_be_exported_is_refused_before_training(project, capfd):
    module = _Pooled(_Fourier())
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "no counterpart in ONNX" in text)
    with pytest.raises(
        TrainingError, match=rf"could not be exported: to ONNX \(opset 17\) at .*test_export.py:{line}: "
    ):
        try_export(module, SPEC, project, _rows())
    assert "graph(" not in "".join(capfd.readouterr())
    assert module.training
    assert all(torch.equal(value, buffers[name]) for name, value in module.named_buffers())
    with pytest.raises(TrainingError, match=r"gives \(2, 3\) in place of \(9, 3\)"):
        try_export(_Pooled(_FixedRows()), SPEC, project, _rows())
    with pytest.raises(TrainingError, match="takes double"):
        try_export(_net().double(), SPEC, project, _rows(torch.float64))
    assert (project / "workflow.yaml").read_text(encoding="utf-8") == WORKFLOW
    assert not (project / "models/tuned.onnx").exists()


def test_an_export_that_works_changes_nothing(project):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    rows, state = _rows(), torch.random.get_rng_state()
    try_export(module, SPEC, project, rows)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert sorted(path.name for path in (project / "models").iterdir()) == ["small.onnx"]


def test_another_shape_is_refused(project):
    with pytest.raises(TrainingError, match="takes double"):
        export_variant(_net().double(), SPEC, project, _rows(torch.float64))
    assert (project / "workflow.yaml").read_text(encoding="utf-8") == WORKFLOW
    assert not (project / "models/tuned.onnx").exists()


def test_a_line_that_cannot_be_put_is_told(project):
    inline = "variants: {small: {model: models/small.onnx}}\n"
    text = WORKFLOW.replace("variants:\n      small: {model: models/small.onnx}\n", inline)
    (project / "workflow.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(TrainingError, match=r"by hand: tuned: \{model: models/tuned.onnx, sha256: "):
        export_variant(_net(), SPEC, project, _rows())
    assert (project / "workflow.yaml").read_text(encoding="utf-8") == text
    with pytest.raises(TrainingError, match="no operator nothing"):
        export_variant(_net(), SPEC.model_copy(update={"operator": "nothing"}), project, _rows())


def test_what_cannot_be_put_replaces_nothing(project):
    """Trained again after the variants were rewritten in one line: the old file keeps its sha256."""
    first = export_variant(_net(), SPEC, project, _rows())
    text = (project / "workflow.yaml").read_text(encoding="utf-8")
    tuned = f"tuned: {{model: models/tuned.onnx, sha256: {first.sha256}}}"
    lines = f"variants:\n      small: {{model: models/small.onnx}}\n      {tuned}\n"
    assert lines in text
    text = text.replace(lines, f"variants: {{small: {{model: models/small.onnx}}, {tuned}}}\n")
    (project / "workflow.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(TrainingError, match="by hand") as told:
        export_variant(_net(), SPEC, project, _rows())
    assert (project / "workflow.yaml").read_text(encoding="utf-8") == text
    assert hashlib.sha256((project / "models/tuned.onnx").read_bytes()).hexdigest() == first.sha256
    line = re.search(r"tuned: \{model: (\S+), sha256: (\w+)\}", str(told.value))
    assert hashlib.sha256((project / line[1]).read_bytes()).hexdigest() == line[2] != first.sha256
    assert not list(project.rglob(".*"))


def test_a_variant_without_a_model_is_passed_over(project):
    """Variants without a model are valid for planning; the port names come from another variant."""
    (project / "workflow.yaml").write_text(
        WORKFLOW.replace("      small:", "      planned: {}\n      small:"), encoding="utf-8"
    )
    found = export_variant(_net(), SPEC, project, _rows())
    assert onnx.load(found.path).graph.input[0].name == "crops"
    assert list(read_file(project / "workflow.yaml").data["operators"]["shape"]["variants"])[-1] == "tuned"


def _sibling(project, path: str, *layers: torch.nn.Module) -> None:
    """Write another variant's model over the example's."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), *layers)
    with pytest.warns(DeprecationWarning):
        torch.onnx.export(
            net,
            (torch.zeros(2, 4),),
            str(project / path),
            input_names=["crops"],
            output_names=["scores"],
            dynamic_axes={"crops": {0: "n"}, "scores": {0: "n"}},
            dynamo=False,
        )


@pytest.mark.parametrize(
    ("sibling", "trained", "gives", "note"),
    [
        ([], [], Form.LOGITS, ""),
        ([torch.nn.Softmax(-1)], [], Form.PROBABILITIES, "gives probabilities, as small does: the trained"),
        ([torch.nn.LogSoftmax(-1)], [], Form.LOG_PROBABILITIES, "gives log-probabilities, as small does"),
        ([torch.nn.Softmax(-1)], [torch.nn.Softmax(-1)], Form.PROBABILITIES, ""),
        ([], [torch.nn.Softmax(-1)], Form.PROBABILITIES, "gives probabilities, but small gives logits"),
    ],
)
def test_the_scores_have_the_form_of_the_other_variants(project, sibling, trained, gives, note):
    _sibling(project, "models/small.onnx", *sibling)
    found = export_variant(torch.nn.Sequential(torch.nn.Linear(4, 3), *trained), SPEC, project, _rows())
    assert found.max_difference <= 1e-4
    assert (note in " ".join(found.notes)) if note else not found.notes
    session = onnxruntime.InferenceSession(str(found.path), providers=["CPUExecutionProvider"])
    assert form_of(session.run(None, {"crops": torch.randn(20, 4).numpy()})[0]).form is gives


def test_the_sibling_of_several_outputs_names_the_one_that_is_sent(project):
    sha256 = sklearn_classifier(project / "models/small.onnx", zipmap=False)
    small = "small: {model: models/small.onnx}"
    with pytest.raises(TrainingError, match="has the outputs label, probabilities; one is needed: name it"):
        export_variant(torch.nn.Linear(4, 3), SPEC, project, _rows())
    named = f"small: {{model: models/small.onnx, sha256: {sha256}, output: probabilities, inputs: {{picture: X}}}}"
    (project / "workflow.yaml").write_text(WORKFLOW.replace(small, named), encoding="utf-8")
    found = export_variant(torch.nn.Linear(4, 3), SPEC, project, _rows())
    graph = onnx.load(found.path).graph
    assert [graph.input[0].name, graph.output[0].name] == ["X", "probabilities"]
    assert "gives probabilities, as small does" in found.notes[0]
    tuned = read_file(project / "workflow.yaml").data["operators"]["shape"]["variants"]["tuned"]
    assert tuned["inputs"] == {"picture": "X"}
