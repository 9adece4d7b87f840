"""Load on several workflows: the same window for all, arrivals of their own, and simulations after the last load."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from jellybean.bench import BenchResult, bench_together, together
from jellybean.bench.load import due_times
from jellybean.bench.load_settings import LoadSettings
from jellybean.bench.together import workflow_seed
from jellybean_solver import Arrivals

WARM_UP_S = {"shop": 2.0, "yard": 7.0}
RESULT = BenchResult("hash", "", 0, 1.0, 1.0, 1, 1, 1, 0, 1.0, True, "", 0.0)


@dataclass
class Target:
    warm_up_s: float


class Loads:
    """In place of loads: notes what is done when. Targets take their time to connect, the loads of one longer."""

    def __init__(self) -> None:
        self.settings: dict[str, LoadSettings] = {}
        self.done: dict[str, list[float]] = defaultdict(list)

    def of(self, _project: object, _endpoint: object, _folder: Path, workflow: str, _scale: float) -> _Load:
        time.sleep(0.1)
        return _Load(self, workflow, Target(WARM_UP_S[workflow]))


@dataclass
class _Load:
    loads: Loads
    workflow: str
    target: Target

    def settings(self, duration_s: float, warmup_s: float, seed: int) -> LoadSettings:
        return LoadSettings(duration_s, warmup_s, seed)

    def measure(self, settings: LoadSettings, _progress: object) -> BenchResult:
        self.loads.settings[self.workflow] = settings
        self.loads.done["begun"].append(time.monotonic())
        time.sleep(0.02 * WARM_UP_S[self.workflow])
        self.loads.done["ended"].append(time.monotonic())
        return replace(RESULT, workflow=self.workflow, seed=settings.seed)

    def compared(self, result: BenchResult, _settings: LoadSettings, _progress: object) -> BenchResult:
        self.loads.done["simulated"].append(time.monotonic())
        return result


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads()
    monkeypatch.setattr(together, "Load", found)
    return found


def test_all_begin_together_with_one_warm_up_and_are_simulated_after_the_last(loads: Loads, tmp_path: Path) -> None:
    projects: dict[str, Any] = dict.fromkeys(WARM_UP_S)
    results = bench_together(tmp_path, projects, duration_s=3.0, seed=5)
    assert [(one.workflow, one.seed) for one in results] == [("shop", 5), ("yard", 5)]
    assert {(one.warmup_s, one.duration_s) for one in loads.settings.values()} == {(7.0, 3.0)}
    assert max(loads.done["begun"]) - min(loads.done["begun"]) < 0.05
    assert min(loads.done["simulated"]) >= max(loads.done["ended"])


def test_workflows_of_one_rate_have_arrivals_of_their_own() -> None:
    def times(seed: int, workflow: str) -> list[float]:
        return due_times(5.0, 10.0, Arrivals.POISSON, workflow_seed(seed, workflow))

    assert times(0, "shop") == times(0, "shop")
    assert times(0, "shop") != times(0, "yard")
    assert times(0, "shop") != times(1, "shop")
