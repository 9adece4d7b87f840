"""Absent, sparse and complex gradients, tied weights and buffers made of weights: as plain torch, on any devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.support.rank_pool import RankPool, Refused
from tests.support.trained_models import PlainTorch, Training, difference, document_of

torch.set_num_threads(1)
NETS = "tests.integration.training.gradients.nets"
ONE, TWO, THREE = ({"devices": count, "schedule": "1f1b"} for count in (1, 2, 3))
REPLICAS = {"devices": 1, "replicas": 2}
RING = {**REPLICAS, "sync": {"way": "ring", "bucket": "400 B"}}
SPLIT, COPIES = {"devices": 2, "schedule": "zb-h1"}, {"devices": 2, "schedule": "chimera"}
LAYOUTS = {"two": TWO, "three": THREE, "replicas": REPLICAS, "ring": RING, "zb-h1": SPLIT, "chimera": COPIES}
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.5}),
}
DATA = {
    **dict.fromkeys(("tables", "tied_table"), ("ids", "mse")),
    **dict.fromkeys(("sparse_and_dense", "tied", "frozen_tied"), ("sentences", "cross_entropy")),
    "complex_layers": ("float_vectors", "mse"),
}
FEW = [("tables", "momentum", "replicas"), ("unused", "adamw", "replicas"), ("complex_layers", "sgd", "two")]
MANY = [
    (model, optimizer, layout)
    for model, optimizer in {
        "tables": "momentum",
        "tied_table": "sgd",
        "sparse_and_dense": "adamw",
        "unused": "adamw",
        "branch": "adamw",
        "complex_layers": "adamw",
        "tied": "adamw",
        "frozen_tied": "momentum",
        "spectral": "sgd",
        "weight_normed": "sgd",
        "weight_parametrized": "adamw",
        "orthogonal": "sgd",
        "pruned": "momentum",
        "anchored": "adamw",
    }.items()
    for layout in LAYOUTS
    if (model, optimizer, layout) not in FEW
]
CARRIED = ("spectral", "spectral_parametrized")
CHAINS = {
    "one, two, three devices": [ONE, TWO, THREE],
    "two, one, two devices": [TWO, ONE, TWO],
    "two, one, three replicas": [REPLICAS, ONE, {"devices": 1, "replicas": 3, "microbatches": 1}],
    "schedules": [COPIES, SPLIT, REPLICAS],
    "in the middle of an epoch": ["update 1", TWO, REPLICAS],
}


@pytest.fixture(scope="module")
def pool():
    with RankPool(3) as made:
        yield made


def _settings(model: str, optimizer: str, **settings: object) -> dict[str, object]:
    data, loss = DATA.get(model, ("vectors", "mse"))
    name = {"momentum": "sgd"}.get(optimizer, optimizer)
    options = {"name": name, **OPTIMIZERS[optimizer][1]}
    every = {"model": f"{NETS}:{model}", "data": f"{NETS}:{data}", "loss": loss, "optimizer": options}
    return {**every, "microbatches": 2, **settings}


def _compared(pool: RankPool, folder: object, model: str, optimizer: str, layout: str) -> None:
    settings = _settings(model, optimizer, **LAYOUTS[layout])
    found = pool.run(Training(str(folder), settings), document_of(settings).ranks)
    if model in CARRIED and layout in ("replicas", "ring", "chimera"):
        assert isinstance(found, Refused), found
        assert found.kind == "UntrainableError"
        assert "changes the buffer 2.weight_u in each forward" in found.message
        return
    assert isinstance(found, dict), found
    far, name = difference(found, PlainTorch(settings, *OPTIMIZERS[optimizer]).state())
    assert far < (1e-6 if model == "complex_layers" else 1e-12), name


@pytest.mark.parametrize(("model", "optimizer", "layout"), FEW)
def test_training_is_that_of_plain_torch(pool, tmp_path, model, optimizer, layout):
    _compared(pool, tmp_path, model, optimizer, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "optimizer", "layout"), MANY)
def test_each_layout_is_that_of_plain_torch(pool, tmp_path, model, optimizer, layout):
    _compared(pool, tmp_path, model, optimizer, layout)


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("model", ["tied", "frozen_tied", "tied_table", "sparse_and_dense"])
def test_a_checkpoint_of_tied_weights_resumes_on_other_devices(pool, tmp_path, model, chain):
    optimizer = "momentum" if model == "tied_table" else "adamw"
    found = None
    for epochs, layout in enumerate(CHAINS[chain], 1):
        if layout == "update 1":
            settings = _settings(model, optimizer, epochs=3, checkpoint={"updates": 1}, **ONE)
            found = pool.run(Training(str(tmp_path), settings, stop_after=1), 1)
            assert found is None
            continue
        settings = _settings(model, optimizer, epochs=epochs, **layout)
        found = pool.run(Training(str(tmp_path), settings), document_of(settings).ranks)
        assert isinstance(found, dict), found
    expected = PlainTorch(_settings(model, optimizer, epochs=3), *OPTIMIZERS[optimizer]).state()
    assert difference(found, expected)[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clipping_and_averages_take_sparse_and_complex_gradients(pool, tmp_path, layout):
    for model in ("tables", "complex_layers"):
        clipped = _settings(model, "sgd", clip=0.05, **LAYOUTS[layout])
        folder = tmp_path / model
        folder.mkdir()
        found = pool.run(Training(str(folder), {**clipped, "ema": 0.0}), document_of(clipped).ranks)
        assert isinstance(found, dict), found
        expected = PlainTorch(clipped, *OPTIMIZERS["sgd"]).state()  # an average without memory is the weight
        assert difference(found, expected)[0] < (1e-6 if model == "complex_layers" else 1e-12)
