"""`top` on wide and narrow terminals: no line is cut, and a colour has one meaning."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from jellybean.serving import OutcomeKind, Scrape, parse, render, top_of
from jellybean.serving.top.top import LinkRow, OperatorRow, Top, WorkerRow

WORKERS = (
    WorkerRow("camera-box-1", "edge", "ready", 0.6, 0.58, 0),
    WorkerRow("camera-box-2", "edge", "ready", 0.6, 0.84, 8),
    WorkerRow("cloud-1", "cloud", "gone", 0.25, None, 0),
)
OPERATORS = (OperatorRow("classify_vehicle_make", "cnn-large-int8", 3, 34.9, 0.0, 1.0, 0.41, 8),)
TOP = Top(
    workflow="digits", plan="f3bc607f3b6a77", state="ready", window_s=10.0, offered_per_s=10.0, planned_per_s=10.0,
    answered_per_s=10.0, failed_per_s=0.0, latency_p50_s=0.095, latency_p99_s=0.757, target_p99_s=3.0, overload=None,
    failing=(), in_hand=4, waiting=0, outcomes_per_s=dict.fromkeys(OutcomeKind, 0.0),
    outcomes=dict.fromkeys(OutcomeKind, 0), retries=0, left_out=0, usd_per_h=0.6143, network_usd_per_h=0.2343,
    so_far_usd=0.0078, workers=WORKERS, operators=OPERATORS,
    links=(LinkRow("edge", "cloud", 8700.0, 155_000.0, 0.2343),),
)  # fmt: skip


def _printed(columns: int, *, colours: bool = False) -> str:
    output = io.StringIO()
    system = "standard" if colours else None
    Console(file=output, width=columns, force_terminal=colours, color_system=system).print(render(TOP))
    return output.getvalue()


@pytest.mark.parametrize("columns", [46, 60, 84, 100])
def test_every_row_fits_the_terminal(columns: int) -> None:
    text = _printed(columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text, "nothing is cut"
    for figure in ("camera-box-2", "60%", "84%", "34.9", "41%", "8.5 KiB/s", "0.2343", "gone"):
        assert figure in text, figure
    assert ("cnn-large-int8" in text) == (columns >= 100)


def test_load_is_cyan_above_the_plan_yellow_and_no_load_is_green() -> None:
    lines = _printed(100, colours=True).splitlines()
    (as_planned,) = [line for line in lines if "camera-box-1" in line]
    (above,) = [line for line in lines if "camera-box-2" in line]
    assert "\x1b[36m━" in as_planned
    assert "\x1b[33m━" in above
    assert all("\x1b[32m━" not in line for line in lines), "green is a verdict"


def test_why_a_worker_is_missing_is_said() -> None:
    output = io.StringIO()
    rows = (WorkerRow("cloud-1", "cloud", "starting", 0.25, None, 0, reason="model file m.onnx was overwritten"),)
    Console(file=output, width=100).print(render(replace(TOP, workers=rows)))
    assert "cloud-1 is starting: model file m.onnx was overwritten" in output.getvalue()


def test_a_certificate_that_is_about_to_expire_is_a_sentence() -> None:
    text = "\n".join(
        f'jellybean_certificate_{name}{{process="{process}"}} {value}'
        for process, left_s in (("gateway", 1800.0), ("box-1", -5.0), ("box-2", 300_000.0))
        for name, value in (("expires_timestamp_seconds", 1_000_000.0 + left_s), ("lifetime_seconds", 604_800.0))
    )
    now = Scrape(1.0, parse(text), at_unix_s=1_000_000.0)
    top = top_of(Scrape(0.0, {}), now)
    output = io.StringIO()
    Console(file=output, width=200).print(render(top))
    told = [line.rstrip() for line in output.getvalue().splitlines() if "certificate" in line]
    end = "its log names the command that renews it"
    assert told == [
        f"the certificate of box-1 has expired (1970-01-12 13:46 UTC): {end}",
        f"the certificate of gateway expires in 30.0 min (1970-01-12 14:16 UTC): {end}",
    ]


def test_claims_beyond_the_plan_are_said() -> None:
    samples = parse('jellybean_refused_claims_total{sender="edge-2",worker="cloud-1"} 12\n')
    refused = Scrape(1.0, samples, "digits", workers={"edge-2": "ready"}, reasons={"edge-2": "claims refused: 3"})
    output = io.StringIO()
    Console(file=output, width=100).print(render(top_of(refused, replace(refused, at_s=2.0))))
    assert "cloud-1 refused 12 messages of edge-2" in output.getvalue()
    assert "edge-2 is ready: claims refused: 3" in output.getvalue()
