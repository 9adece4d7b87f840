"""All processes make the same model, or the run is refused; a run resumes with its model and optimizer alone."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from tests.support.rank_pool import RankPool, Refused
from tests.support.trained_models import Training, difference

torch.set_num_threads(1)
HERE = "tests.integration.training.gradients.agreement"
VECTORS = {"data": "tests.integration.training.gradients.nets:vectors", "loss": "mse", "schedule": "1f1b"}


@pytest.fixture(scope="module")
def pool():
    with RankPool(2) as made_pool:
        yield made_pool


def _settings(model: str, **more: object) -> dict[str, object]:
    return {"model": f"{HERE}:{model}", **VECTORS, **more}


def test_generators_of_numpy_and_python_have_the_seed(pool, tmp_path):
    one = pool.run(Training(str(tmp_path / "one"), _settings("by_numpy")), 1)
    two = pool.run(Training(str(tmp_path / "two"), _settings("by_numpy", replicas=2)), 2)
    assert difference(one, two)[0] < 1e-9


def test_models_that_differ_between_processes_are_refused(pool, tmp_path):
    refused = pool.run(Training(str(tmp_path), _settings("by_system", replicas=2)), 2)
    assert isinstance(refused, Refused)
    assert refused.kind == "UntrainableError"
    assert "gives another model in each process: 0.bias differs between them" in refused.message


def test_numbers_in_an_optimizers_state_are_numbers_again(pool, tmp_path):
    settings = _settings("three", optimizer={"name": f"{HERE}:Fading", "lr": 0.1})
    whole = pool.run(Training(str(tmp_path / "whole"), settings), 1)
    pool.run(Training(str(tmp_path / "parts"), {**settings, "epochs": 1}), 1)
    resumed = pool.run(Training(str(tmp_path / "parts"), settings), 1)
    assert difference(whole, resumed)[0] == 0.0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"model": "three"}, {"model": "two"}, "weight/1.* is none of this model's weights"),
        ({"model": "two"}, {"model": "three"}, "weight/1.* is missing"),
        ({"name": "adam"}, {"name": "adam", "amsgrad": True}, "has no max_exp_avg_sq of 0.weight, which adam needs"),
        ({"name": "rmsprop"}, {"name": "rmsprop", "momentum": 0.5}, "has no momentum_buffer of 0.weight"),
        ({"name": "sgd"}, {"name": "sgd", "momentum": 0.5}, ""),
        ({"name": "adam", "amsgrad": True}, {"name": "adam"}, ""),
    ],
)
def test_what_a_checkpoint_lacks_is_named(pool, tmp_path, before, after, said):
    def training(given: dict[str, object], epochs: int) -> Training:
        optimizer = {"name": "sgd", **{key: value for key, value in given.items() if key != "model"}, "lr": 0.01}
        model = str(given.get("model", "three"))
        return Training(str(tmp_path), _settings(model, optimizer=optimizer, epochs=epochs))

    assert not isinstance(pool.run(training(before, 1), 1), Refused)
    result = pool.run(training(after, 2), 1)
    if not said:
        assert not isinstance(result, Refused)
        return
    assert isinstance(result, Refused)
    assert re.search(said, result.message), result.message
