"""The noise in the header of profiles.yaml is that of the entries that the run measured."""

from __future__ import annotations

import re
from statistics import median

import pytest

from jellybean.documents import read_profiles
from jellybean.profiler.document import with_noise
from tests.support.paths import EXAMPLES


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
