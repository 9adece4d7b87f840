"""Published models train as plain torch does, on any devices, or are refused before the first epoch."""

from __future__ import annotations

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.compared import compared
from tests.integration.training.published_models.models import (
    LAYOUTS,
    PUBLISHED,
    REFUSED_IN_COPIES,
    REFUSED_IN_STAGES,
    training_of,
)
from tests.support.rank_pool import RankPool

torch.set_num_threads(1)
SMALL = [name for name in PUBLISHED if not PUBLISHED[name].large]


@pytest.fixture(scope="module")
def pool():
    with RankPool(3) as made_pool:
        yield made_pool


def _check(name, layout, pool) -> None:
    verdict = compared(training_of(name, layout), pool)
    assert not verdict.wrong, str(verdict)
    refused = name in REFUSED_IN_STAGES and layout in ("two", "three")
    refused |= layout == "replicas" and (name in REFUSED_IN_COPIES or not PUBLISHED[name].divided)
    assert bool(verdict.refusal) is refused, str(verdict)


def test_one_of_a_language_model(pool):
    """Before its first update it has nearly the same loss for every label, so its loss does not tell which it takes."""
    _check("opt", "one", pool)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), [(name, LAYOUTS[n % len(LAYOUTS)]) for n, name in enumerate(SMALL)])
def test_each_by_one_layout(pool, name, layout):
    _check(name, layout, pool)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_each_by_all_layouts(pool, name, layout):
    _check(name, layout, pool)
