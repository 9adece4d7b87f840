"""Every schedule learns the digits to a stated accuracy; synchronous ones like one device, epoch by epoch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")
pytest.importorskip("sklearn", reason="its digits are the data")

from jellybean_solver.pipeline.schedules import SCHEDULES, make_schedule  # noqa: E402
from tests.integration.training.learning import DEVICES, Learn, one_device  # noqa: E402
from tests.integration.training.ranks import run_ranks  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
EPOCHS = 10
STATED = {"transformer": 90.0, "conv": 97.0}  # percent of the 360 test rows


@pytest.fixture(scope="module", params=STATED)
def found(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("runs"))
    cases = [Learn(schedule, request.param, EPOCHS, folder) for schedule in SCHEDULES]
    torch.set_num_threads(1)
    told = dict(zip(SCHEDULES, (ranks[0] for ranks in run_ranks(DEVICES, cases, seconds=3000)), strict=True))
    return request.param, told, one_device(request.param, EPOCHS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_accuracy(found, schedule):
    model, told, _ = found
    assert told[schedule][-1][1] >= STATED[model]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_synchronous_ones_follow_one_device(found, schedule):
    _, told, expected = found
    if make_schedule(schedule, DEVICES, DEVICES).flushes:
        for (loss, _), (other, _) in zip(told[schedule][:3], expected[:3], strict=True):
            assert loss == pytest.approx(other, rel=2e-3)  # rounding in single precision grows with time
