"""training.yaml: what is wrong is told with line and path; needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import load_training
from jellybean.errors import DocumentError

GOOD = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 2
batch: 64
optimizer: {name: adam, lr: 0.001}
"""


def _written(folder: Path, text: str) -> Path:
    (folder / "training.yaml").write_text(text, encoding="utf-8")
    return folder


def test_defaults(tmp_path):
    document = load_training(_written(tmp_path, GOOD), ["devices=2", "optimizer.lr=0.5"])
    assert (document.devices, document.ranks, document.schedule, document.optimizer.lr) == (2, 2, "auto", 0.5)
    assert document.sync.way == "torch"


def test_ways_to_sum_gradients(tmp_path):
    text = GOOD.replace("batch: 64", "batch: 64\nsync: {way: ring, bucket: 3 MiB}")
    sync = load_training(_written(tmp_path, text)).sync
    assert (sync.way, sync.bucket_bytes) == ("ring", 3 * 2**20)


@pytest.mark.parametrize("targets", ["'*.q_proj'", "['*.q_proj']"])
def test_one_target_may_be_a_text(tmp_path, targets):
    document = load_training(_written(tmp_path, GOOD + f"lora: {{targets: {targets}}}\n"))
    assert document.lora.targets == ("*.q_proj",)
    assert (document.lora.rank, document.lora.alpha) == (8, 16.0)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epochs: 2", "epochs: 0", "4:"),
        ("epochs: 2", "epochs: 2\nschedule: chimaera", "did you mean 'chimera'"),
        ("nets.py:net", "nets.py", "does not name a function"),
        ("batch: 64", "batch: 4\nmicrobatches: 8", "less than one sample for each of 8 micro-batches"),
        (
            "batch: 64",
            "batch: 64\nlr_schedule: {name: cosine, warmpu: 1}",
            "cosine has no 'warmpu'.*did you mean 'warmup'",
        ),
        ("batch: 64", "batch: 64\nlr_schedule: {name: StepLR, step_size: 1, warmup: 2}", "StepLR takes no warmup"),
        ("name: adam,", "name: adam, groups: [{lr: 0.1}],", "optimizer.groups.0.*missing key 'match'"),
        ("epochs: 2", "epochs: 2\nlora: {r: 4}", "lora.*unknown key 'r'"),
        ("epochs: 2", "epochs: 2\nlora: {dropout: 1}", "lora.dropout"),
        ("epochs: 2", "epochs: 2\nlora: {targets: []}", "lora.targets"),
        ("epochs: 2", "epochs: 2\nmemory: 4", "memory"),
        ("epochs: 2", "epoch: 2", "epoch"),
        ("kind: Training", "kind: Workflow", "Workflow"),
        ("lr: 0.001", "lrr: 0.001", "unknown key 'lrr'; did you mean 'lr'?"),
        ("batch: 64", "batch: 64\ndevice: gpu", "'gpu' is not one of auto, cpu, cuda; write auto"),
        ("lr: 0.001", "lr: fast", "6:29: optimizer.lr: 'fast' is not a finite number"),
        ("batch: 64", "batch: 64\nloss: crossentropy", "did you mean 'cross_entropy'"),
        ("batch: 64", "batch: 64\ndevices: 1000000", "at most 65536"),
        ("batch: 64", "batch: 64\nmetrics: [accurcy]", "metrics.0.*unknown metric 'accurcy'; did you mean 'accuracy'"),
        ("batch: 64", "batch: 64\nmetrics: [a.py:f1, b.py:f1]", "two metrics have the name 'f1'"),
        ("batch: 64", "batch: 64\nloss: mse\nmetrics: [perplexity]", "perplexity is exp of a mean cross-entropy"),
        ("batch: 64", "batch: 64\nearly_stop: {metric: acuracy, patience: 2}", "did you mean 'accuracy'"),
        (
            "batch: 64",
            "batch: 64\nmetrics: [a.py:f1]\nearly_stop: {metric: f1, patience: 2}",
            "write mode: max, or min$",
        ),
        ("batch: 64", "batch: 64\nema: 1.0", "ema: must be below 1"),
        (
            "batch: 64",
            "batch: 64\nsync: {way: rign}",
            "unknown way to sum gradients 'rign'; did you mean 'ring'",
        ),
        ("batch: 64", "batch: 64\nsync: {servers: 2}", "`servers` is of parameter servers"),
        ("batch: 64", "batch: 64\nsync: {way: parameter-server, bucket: 1 MiB}", "takes all gradients at once"),
        ("batch: 64", "batch: 64\nsync: {way: parameter-server, staleness: 2}", "bsp has no staleness"),
        ("batch: 64", "batch: 64\nsync: {way: parameter-server, address: here}", "'here' is no IP address"),
        ("batch: 64", "batch: 64\nsync: {way: parameter-server, address: 0.0.0.0}", "could connect"),
        ("batch: 64", "batch: 64\nsync: {way: star}", "tree, butterfly, parameter-server$"),
        (
            "batch: 64",
            "batch: 64\nsync: {bucket: 3 MiB}",
            "gradients at once; remove `bucket`, or choose a way",
        ),
        ("batch: 64", "batch: 64\nsync: {way: ring, bucket: 0 B}", "sync.bucket: must be above 0"),
        ("data: nets.py:data", "data: {folder: x, size: 0}", r"data.size: must be at least 1, not 0$"),
        ("data: nets.py:data", "data: {csv: x.csv}", "data.*missing key 'target'"),
        (
            "data: nets.py:data",
            "data: {function: nets.py:data, worker: 2}",
            "unknown key 'worker'; did you mean 'workers'",
        ),
        (
            "batch: 64",
            "batch: 64\nexport: {operator: a, variant: b, model: ../m.onnx}",
            "is not the path of an ONNX file",
        ),
    ],
)
def test_mistakes(tmp_path, old, new, told):
    with pytest.raises(DocumentError, match=told):
        load_training(_written(tmp_path, GOOD.replace(old, new)))


def test_missing_file_says_what_to_write(tmp_path):
    with pytest.raises(DocumentError, match="kind: Training"):
        load_training(tmp_path)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("epochs.first=3", "epochs is the number 2; set it as a whole"),
        ("epoch=3", "unknown key 'epoch'; did you mean 'epochs'"),
        ("epochs", "not of the form path=value; write --set epochs=3"),
        ("optimizer.lr=fast", "'fast' is not a finite number"),
        ("optimizer=adam", "'adam' is not a map"),
        ("microbatches=100", "a batch of 64 has less than one sample for each of 100"),
        ("lr_schedule.name=cos", "did you mean 'cosine'"),
        ("schedule=gpip", "did you mean 'gpipe'"),
        ("tensor={conv: data}", "tensor.ways: missing key 'ways'; write for example ways: 2"),
        ("schedule=chimera", "chimera needs an even number of devices, not 1"),
        ("tensor={}", "tensor.ways: missing key 'ways'"),
        ("tensor={way: 2}", "unknown key 'way'; did you mean 'ways'"),
    ],
)
def test_what_is_wrong_with_an_option_is_told_at_the_option(tmp_path, option, told):
    with pytest.raises(DocumentError) as caught:
        load_training(_written(tmp_path, GOOD), [option])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"--set {option}: ")
    assert told in line


@pytest.mark.parametrize(
    ("lines", "options", "where", "told"),
    [
        ("", ["plan=x.json", "objective=dapple"], "--set plan=x.json --set objective=dapple", "remove one of them"),
        ("objective: dapple", ["plan=x.json"], "--set plan=x.json", "remove one of them"),
        ("objective: dapple\nplan: x.json", [], "training.yaml:8:1", "remove one of them"),
        ("", ["devices=2", "min_devices=3"], "--set min_devices=3 --set devices=2", "min_devices is 3 and devices 2"),
        ("", ["stages=nets.py:net"], "--set stages=nets.py:net", "both model and stages"),
        ("", ["processes=2"], "--set processes=2", "needs `parallel: auto`"),
        ("sync: {way: ring}", ["sync.way=parameter-server", "clip=1", "devices=2"], None, "is one process"),
        ("devices: 2", ["sync={way: parameter-server}"], "--set sync={way: parameter-server}", "is one process"),
        ("", ["sync={way: ring, staleness: 1}"], "--set sync={way: ring, staleness: 1}", "is of parameter servers"),
        ("devices: 3", ["schedule=chimera"], "--set schedule=chimera", "an even number of devices, not 3"),
        ("schedule: chimera\ndevices: 3", [], "training.yaml:8:1", "an even number of devices, not 3"),
        ("schedule: interleaved\nmicrobatches: 3", ["devices=2"], "--set devices=2", "2 devices divide, not 3"),
        ("schedule: zb-h1", ["chunks=3"], "--set chunks=3", "not for zb-h1remove it, or train by interleaved"),
        ("objective: dapple", ["chunks=3"], "--set chunks=3", "not for plans"),
    ],
)
def test_keys_that_contradict_each_other_are_located_where_they_are_given(tmp_path, lines, options, where, told):
    with pytest.raises(DocumentError) as caught:
        load_training(_written(tmp_path, GOOD + lines + "\n"), options)
    (problem,) = caught.value.problems
    where = where or "--set devices=2 --set sync.way=parameter-server"
    assert f"{problem}".removeprefix(f"{tmp_path}/").startswith(f"{where}: ")
    assert told in problem.message + problem.hint


def test_a_schedule_is_checked_against_devices_that_the_document_gives_only(tmp_path):
    """`parallel: auto`, a plan and an objective decide on them later; no actions are ordered for large numbers."""
    odd = ["schedule=chimera", "devices=3"]
    assert load_training(_written(tmp_path, GOOD), [*odd, "parallel=auto"]).schedule == "chimera"
    assert load_training(_written(tmp_path, GOOD), ["schedule=chimera", "objective=branches"]).devices == 1
    assert load_training(_written(tmp_path, GOOD), ["schedule=gpipe", "devices=65536"]).devices == 65536


NETS = """\
from torch.nn import functional as losses
try:
    from fast import data
except ImportError:
    def data(): ...
net = little = lambda: None
"""


def test_what_it_names_is_looked_for_with_the_other_problems(tmp_path):
    """Without running anything: this machine need not have what the file imports."""
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    load_training(_written(tmp_path, GOOD + "loss: nets.py:losses\n"), references=True)
    text = GOOD.replace("nets.py:net", "net.py:net").replace("nets.py:data", "nets.py:dta").replace("s: 2", "s: 0")
    with pytest.raises(DocumentError) as caught:
        load_training(_written(tmp_path, text), ["loss=nets:los"], references=True)
    told = [str(problem).rpartition("training.yaml:")[2] for problem in caught.value.problems]
    assert sorted(told) == [
        "--set loss=nets:los: loss: there is no module 'nets'; did you mean 'nets.py:los'?",
        "2:8: model: there is no file 'net.py'; did you mean 'nets.py'?",
        "3:7: data: nets.py has no function 'dta'; did you mean 'data'?",
        "4:9: epochs: must be at least 1, not 0",
    ]
    (tmp_path / "pictures").mkdir()
    with pytest.raises(DocumentError, match=r"3:16: data\.folder: .*did you mean 'pictures'"):
        load_training(_written(tmp_path, GOOD.replace("nets.py:data", "{folder: picture, size: 8}")), references=True)


def test_functions_and_files_of_the_data_are_looked_for(tmp_path):
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "rows.csv").touch()
    for given, told in (
        ("{function: nets.py:dta, workers: 2}", r"data\.function: nets.py has no function 'dta'; did you mean 'data'"),
        ("{csv: row.csv, target: kind}", r"data\.csv: there is no file 'row.csv'; did you mean 'rows.csv'"),
    ):
        with pytest.raises(DocumentError, match=told):
            load_training(_written(tmp_path, GOOD.replace("nets.py:data", given)), references=True)
    good = GOOD.replace("nets.py:data", "{csv: rows.csv, target: kind}")
    assert load_training(_written(tmp_path, good), references=True).data_name == "rows.csv"


@pytest.mark.parametrize(
    "text", ["from others import *", "def __getattr__(name): ...", "globals()['net'] = 1", "def odd(:"]
)
def test_a_file_whose_names_cannot_be_seen_is_left_to_its_import(tmp_path, text):
    (tmp_path / "nets.py").write_text(text, encoding="utf-8")
    load_training(_written(tmp_path, GOOD), references=True)


def test_weights_that_the_run_writes_are_refused(tmp_path):
    (tmp_path / "training").mkdir()
    for name in ("model.safetensors", "training/model.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "nets.py").write_text("def net():\n    pass\n\ndef data():\n    pass\n", encoding="utf-8")
    assert load_training(_written(tmp_path, GOOD + "weights: model.safetensors\n"), references=True).weights
    with pytest.raises(DocumentError, match=r"this run itself writes.*move it out of training/, which --fresh deletes"):
        load_training(_written(tmp_path, GOOD + "weights: ./training/model.safetensors\n"), references=True)
