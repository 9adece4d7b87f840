"""Real and emulated devices are timed on the same terms: a call's overhead after a pause is in both."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from jellybean.profiler.cache import Cache
from jellybean.profiler.latency import BLOCKS, Latency, LatencyMeter, Point
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Model, Step, Workload
from jellybean_agent import PythonStep
from jellybean_solver import Edge

COMPUTE_S, OVERHEAD_S = 0.0005, 0.004
STEP = f"""
import machine_clock

from jellybean_agent.steps import step

last_s = 0.0


@step(inputs={{"x": ("float32", (-1,))}}, outputs={{"y": ("float32", (-1,))}})
def uneven(inputs):
    global last_s
    idle = machine_clock.now_s - last_s > 0.002
    machine_clock.compute({COMPUTE_S} + ({OVERHEAD_S} if idle else 0.0))
    last_s = machine_clock.now_s
    return {{"y": inputs["x"]}}
"""


class MachineClock(ModuleType):
    """A machine's time that only sleeps and computation advance; a module, so that the step can import it."""

    now_s = cpu_s = 0.0

    def compute(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[float, Latency]:
    """Latencies by speed of a step that takes `OVERHEAD_S` more after a pause."""
    (tmp_path / "uneven_step.py").write_text(STEP, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    clock = MachineClock("machine_clock")
    monkeypatch.setitem(sys.modules, clock.__name__, clock)
    sha256 = hashlib.sha256(STEP.encode()).hexdigest()
    code = PythonStep("uneven_step:uneven", "{}", frozenset({"uneven_step:uneven"}))
    model = Model("look", "uneven", Path(), sha256, code, sha256)
    workload = Workload((Step("look", (Edge("x", "look"),), (model,)),), {"x": np.zeros((1, 2))}, None, "top1", {})
    cache = Cache.open(tmp_path, resume=False)
    meter = LatencyMeter(workload, Survey({"look": [(np.ones(2, np.float32),)]}, {}, {}, {}), cache, 0.04)
    points = [Point(model, speed, 1) for speed in (1.0, 0.5, 0.25)]
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: clock.now_s)
        patched.setattr(time, "thread_time", lambda: clock.cpu_s)
        patched.setattr(time, "sleep", clock.sleep)
        for block in range(BLOCKS):
            for point in points:
                meter.measure(point, block)
    return {point.speed: meter.result(point) for point in points}


def test_the_overhead_of_a_call_is_in_real_and_emulated_times(measured: dict[float, Latency]) -> None:
    for speed, latency in measured.items():
        assert latency.mean_s == pytest.approx(COMPUTE_S / speed + OVERHEAD_S)  # only the computation is scaled
