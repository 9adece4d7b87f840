"""Files of real exporters (`exporters/README.md`): served as onnxruntime runs them, or refused with the reason."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from jellybean.tensor_files import read_archive
from tests.support.drafted_models import faults_of
from tests.support.made_model import MadeModel

ARCHIVE = Path(__file__).parent / "exporters/models.zip"
REFUSALS = {  # model -> words of the reason
    "torch_lstm_seqfirst_script": "a request has 1 row, and the model takes exactly 5: export it with its rows first",
    "skl_LogisticRegression_str_zip": "export with skl2onnx's options={'zipmap': False}",
    "skl64_DecisionTreeRegressor": "does not load the model",
    "skl_onehot_str": "is text",
    "skl_fixed_3": "the model takes exactly 3: export it",
    "ortopt_torch_conv_script": "of one kind of processor, for which onnxruntime optimised the model",
}
CONSTANTS = {"torch_scale_script": {"scale": 1.0}}
SOME = ("torch_mlp_script_external", "torch_dtypes_script", "skl_columns_frame", "lgb_zip", "ext_torch_mlp_script_dyn")


def names() -> list[str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return sorted({name.partition("/")[0] for name in archive.namelist()})


def exported(name: str, folder: Path) -> MadeModel:
    """The model in a folder, with its request."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder, [file for file in archive.namelist() if file.startswith(f"{name}/")])
    feed = read_archive(folder / name / "feed.npz")
    constants = CONSTANTS.get(name, {})
    request = {port: values for port, values in feed.items() if port not in constants}
    return MadeModel(name, folder / name / "m.onnx", [request], REFUSALS.get(name, ""), constants=constants)


@pytest.mark.parametrize(
    "name", [name if name in (*SOME, *REFUSALS) else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_a_model_of_an_exporter(tmp_path: Path, name: str) -> None:
    assert faults_of(exported(name, tmp_path), tmp_path / "project") == []
