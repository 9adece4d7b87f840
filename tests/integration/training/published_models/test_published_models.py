"""Published models train as plain torch does, on any devices, or are refused before the first epoch."""

from __future__ import annotations

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("transformers", reason=NotInstalled.TRANSFORMERS)

from tests.integration.training.compared import compared
from tests.integration.training.published_models.models import LAYOUTS, PUBLISHED, training_of
from tests.support.rank_pool import RankPool

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pool():
    with RankPool(3) as made_pool:
        yield made_pool


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published(pool, name):
    for layout in LAYOUTS:
        verdict = compared(training_of(name, layout), pool)
        assert not verdict.wrong, str(verdict)
