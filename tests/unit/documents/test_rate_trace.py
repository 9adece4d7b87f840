"""Rate traces as files: what they say, and everything that can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jellybean.documents import RateTraceFile, read_rate_trace
from jellybean.errors import DocumentError
from tests import report_plans

Read = Callable[[str], RateTraceFile]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a text as a trace for the vqa plan (image and speech, 40/s each, one stream)."""

    def apply(text: str) -> RateTraceFile:
        path = tmp_path / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return read_rate_trace(path, report_plans.vqa())

    return apply


def problems(read: Read, text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read(text)
    return [str(problem).partition("trace.csv:")[2] for problem in caught.value.problems]


HEADER = "time_s,source,rate_per_s\n"


def test_rates_hold_until_the_next_and_the_last_as_long_as_those_before(read: Read) -> None:
    found = read(HEADER + "100,image,10\n100,speech,10\n160,speech,20\n160,image,20\n")
    assert found.origin_s == 100
    assert [(s.start_s, s.end_s, s.rates_per_s) for s in found.trace.stretches] == [
        (0, 60, {"image": 10, "speech": 10}),
        (60, 120, {"image": 20, "speech": 20}),
    ]


def test_spaces_quotes_blank_lines_and_a_byte_order_mark_are_fine(read: Read) -> None:
    found = read('\ufefftime_s, source, rate_per_s\n\n0, image, 10\n0,"speech",10\n')
    assert found.trace.length_s == 60
    assert found.trace.peaks_per_s == {"image": 10, "speech": 10}


def test_a_source_without_rows_keeps_its_own_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,image,40\n9,image,40\n", encoding="utf-8")
    assert read_rate_trace(path, report_plans.vqa()).trace.peaks_per_s == {"image": 40, "speech": 40}


def test_every_problem_is_told_at_once_with_its_place(read: Read) -> None:
    text = HEADER + "0,image,40/s\nsoon,speech,40\n5,imag,40\n5,image\n-1,image,1\n0,speech,nan\n6,speech,1e9\n"
    found = problems(read, text)
    assert [line.split(":")[:2] for line in found] == [
        ["2", "9"],
        ["3", "1"],
        ["4", "3"],
        ["5", "1"],
        ["6", "1"],
        ["7", "10"],
        ["8", "10"],
    ]
    assert "did you mean 'image'?" in found[2]


def test_times_of_a_source_must_ascend(read: Read) -> None:
    (found,) = problems(read, HEADER + "0,image,1\n0,speech,1\n0,image,2\n")
    assert found.startswith("4:1")
    assert "line 2" in found


def test_sources_of_one_stream_must_agree_and_both_lines_are_told(read: Read) -> None:
    found = problems(read, HEADER + "0,image,1\n0,speech,1\n60,image,2\n120,speech,2\n180,speech,3\n")
    assert [line.split(":")[0] for line in found] == ["4", "6"]
    assert "image has 2/s (line 4) but speech has 1/s (line 3)" in found[0]


def test_a_source_that_keeps_its_own_rate_may_disagree_too(read: Read) -> None:
    (found,) = problems(read, HEADER + "0,image,80\n")
    assert "speech has 40/s (the workflow's rate" in found


@pytest.mark.parametrize("text", ["", "time,source,rate\n0,image,1\n", "0,image,1\n", HEADER])
def test_a_file_without_header_or_rows_is_no_trace(read: Read, text: str) -> None:
    (found,) = problems(read, text)
    assert found.startswith("1:1")


def test_a_trace_without_any_request_is_refused(read: Read) -> None:
    (found,) = problems(read, HEADER + "0,image,0\n0,speech,0\n")
    assert "no request" in found


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        read_rate_trace(tmp_path / "none.csv", report_plans.vqa())
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="UTF-8"):
        read_rate_trace(tmp_path / "bytes.csv", report_plans.vqa())
