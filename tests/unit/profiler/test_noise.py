"""The noise in the header of profiles.yaml is that of the entries that the run measured."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from jellybean.bench import HopTime
from jellybean.documents import read_profiles
from jellybean.profiler import profiler
from jellybean.profiler.cache import Cache
from jellybean.profiler.document import NOISY, noise_notes, with_noise
from jellybean.profiler.latency import Latency, Point
from jellybean.profiler.workload import Model
from tests.support.paths import EXAMPLES


@pytest.mark.parametrize(
    ("noise", "worst"), [(0.342, "34"), (0.104, "10.4"), (0.10041, "10.04"), (NOISY + 1e-9, "just over 10")]
)
def test_the_worst_noise_reads_as_more_than_the_limit(noise: float, worst: str) -> None:
    """Of three latencies of a millisecond or more two are noisy; the shorter one is left out."""
    times = {"a": (2e-3, noise), "b": (2e-3, 0.02), "c": (3e-3, (noise + NOISY) / 2), "d": (1e-5, 0.9)}
    latency = {
        Point(Model("read", name, Path(name), ""), 0.5, 1): Latency(p50_s, p50_s, p50_s, p50_s, spread)
        for name, (p50_s, spread) in times.items()
    }
    (note,) = noise_notes(latency, {"box": 0.5, "server": 1.0})
    assert "2 of 3 latencies of a millisecond or more vary by more than 10 % between" in note
    assert f"the worst by {worst} % (read a on box, batch 1)" in note
    assert noise_notes({point: found for point, found in latency.items() if found.noise == 0.02}, {}) == []


def test_each_run_states_the_median_and_the_highest_noise_of_its_entries() -> None:
    document = read_profiles(EXAMPLES / "digits")
    assert document is not None and 7 not in document.runs
    find = document.operators["find"]["find"]
    origins = {**find.provenance.latency, "hub": find.provenance.latency["hub"].model_copy(update={"run": 7})}
    moved = find.model_copy(update={"provenance": find.provenance.model_copy(update={"latency": origins})})
    operators = {**document.operators, "find": {"find": moved}}
    runs = {**document.runs, 7: document.runs[1], 8: document.runs[1]}
    stated = with_noise(document.model_copy(update={"operators": operators, "runs": runs})).runs
    latencies = {(o, v): p.latency for o, variants in operators.items() for v, p in variants.items()}
    entries = [
        (operator, name, batch.noise)
        for (operator, _), by_type in latencies.items()
        for name, batches in by_type.items()
        for batch in batches.values()
    ]
    hub = find.latency["hub"][1].noise
    assert hub is not None
    others = [noise for operator, name, noise in entries if (operator, name) != ("find", "hub")]
    for run, noises in ((1, others), (7, [hub])):
        figures = [float(text) for text in re.findall(r"([0-9.]+) %", stated[run].noise or "")]
        assert figures == pytest.approx([100 * median(noises), 100 * max(noises)], rel=0.05)
    assert stated[8].noise is None  # no entry is left


def test_a_noisy_hop_is_measured_again_and_the_less_noisy_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [HopTime(0.0157, 1.2), HopTime(0.02, 1.9), HopTime(0.0014, 0.05)]
    monkeypatch.setattr(profiler, "measure_hop", lambda: measured.pop(0))
    cache = Cache.open(tmp_path)
    found = [profiler.measured_hop(cache).seconds for _ in range(4)]
    assert found == [0.0157, 0.0157, 0.0014, 0.0014]
    assert not measured
    assert profiler.measured_hop(Cache.open(tmp_path)) == HopTime(0.0014, 0.05)
