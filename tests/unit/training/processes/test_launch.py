"""The launcher reports what ended a run, not what followed from it."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from jellybean.training.processes.launch import _reason


def _failed(codes: dict[int, int]) -> dict[int, ProcessFailure]:
    return {rank: ProcessFailure(rank, 100 + rank, code, "/nowhere") for rank, code in codes.items()}


@pytest.mark.parametrize(
    ("codes", "reports", "told"),
    [
        ({0: 1, 1: -signal.SIGTERM}, {"crash-0": "nets.py:3: row 7 is odd"}, "nets.py:3: row 7 is odd"),
        ({0: -signal.SIGTERM, 1: 1}, {"lost-1": "lost the connection"}, "lost the connection"),
        ({0: 1, 1: -signal.SIGKILL}, {"lost-0": "lost the connection"}, "rank 1 was killed by SIGKILL"),
        ({0: -signal.SIGKILL}, {"still-1": "rank 0 has not responded"}, "rank 0 has not responded"),
        ({0: -signal.SIGTERM}, {}, "rank 0 was killed by SIGTERM"),
        ({1: 3}, {}, "rank 1 ended with status 3"),
    ],
)
def test_the_cause_comes_first(tmp_path, codes, reports, told):
    for name, text in reports.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert _reason(tmp_path, _failed(codes)) == told
