"""`jellybean pipeline` from the command line: figures, drawings, traces, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean_solver.pipeline import SCHEDULES, make_schedule
from jellybean_solver.pipeline.schedule.schedule import parse_actions
from tests.support.command_line import jellybean

ONE_F_ONE_B = ("--schedule", "1f1b", "--devices", "4", "--chunks", "1", "--microbatches", "8")
TIMES = ("--forward-s", "1", "--backward-s", "2")


def test_simulate_prints_what_the_paper_says() -> None:
    answer = json.loads(jellybean("pipeline", "simulate", *ONE_F_ONE_B, *TIMES, "--json", "--actions").stdout)
    assert answer["makespan_s"] == 33
    assert answer["bubble_fraction"] == pytest.approx(3 / 11)
    assert answer["bubble_over_ideal"] == pytest.approx(3 / 8)
    assert [device["peak_activations"] for device in answer["devices"]] == [4, 3, 2, 1]
    assert {(device["weight_versions"], device["update_delay"]) for device in answer["devices"]} == {(1, 0)}
    assert parse_actions("\n".join(answer["actions"])) == make_schedule("1f1b", 4, 8).actions
    text = jellybean("pipeline", "simulate", *ONE_F_ONE_B, *TIMES).stdout
    assert "27.3% idle (37.5% of the ideal time)" in text


def test_uneven_stages_and_parts_of_a_backward() -> None:
    uneven = ("--forward-s", "1,2,1,1", "--backward-s", "2,4,2,2", "--transfer-s", "0.5,0,0.5", "--no-overlap")
    answer = json.loads(jellybean("pipeline", "simulate", *ONE_F_ONE_B, *uneven, "--json").stdout)
    assert [device["busy_s"] for device in answer["devices"]] == [24, 48, 24, 24]
    halves = ("--schedule", "zb-h1", "--devices", "2", "--microbatches", "4", "--backward-s", "2", "--input-s", "1.2")
    found = json.loads(jellybean("pipeline", "simulate", *halves, "--json").stdout)
    assert found["makespan_s"] == pytest.approx(4 * 3 + 1 + 1.2 - 0.8)


def test_a_timeline_is_drawn_and_traced(tmp_path: Path) -> None:
    text = jellybean("pipeline", "draw", *ONE_F_ONE_B).stdout
    rows = [line for line in text.splitlines() if line.startswith("device")]
    assert len(rows) == 4
    assert rows[3].split()[2:8] == ["·", "·", "·", "0", "0──", "1"]
    picture, trace = tmp_path / "one.svg", tmp_path / "trace.json"
    jellybean("pipeline", "draw", *ONE_F_ONE_B, "--plot", str(picture))
    assert "1f1b: 4 devices, 8 micro-batches, 27.3% idle" in picture.read_text(encoding="utf-8")
    jellybean("pipeline", "simulate", *ONE_F_ONE_B, "--trace", str(trace))
    events = [event for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 4 * (8 + 8 + 1)
    assert max(event["ts"] + event["dur"] for event in events) == 33e6


def test_compare_ranks_all_that_are_possible() -> None:
    answer = json.loads(jellybean("pipeline", "compare", "--devices", "4", "--microbatches", "8", "--json").stdout)
    found = {item["schedule"]: item["makespan_s"] for item in answer["schedules"]}
    assert set(found) == set(SCHEDULES)
    assert next(item["bubble_over_ideal"] for item in answer["schedules"] if item["schedule"] == "naive") == 3
    assert found["zb-v"] < found["zb-h1"] < found["interleaved"] < found["1f1b"] < found["naive"]
    odd = jellybean("pipeline", "compare", "--devices", "3", "--microbatches", "4")
    assert "chimera is omitted: chimera needs an even number of devices, not 3" in odd.stderr
    assert "1f1b" in odd.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--schedule", "none"), "there are naive"),
        (("--schedule", "chimera", "--devices", "3"), "even number"),
        (("--schedule", "1f1b", "--forward-s", "1,2"), "2 times; 1f1b has 4 stages"),
        (("--schedule", "1f1b", "--forward-s", "x"), "write seconds"),
        (("--schedule", "1f1b", "--backward-s", "inf"), "finite"),
        (("--schedule", "1f1b", "--devices", "0"), "devices"),
        (("--schedule", "gpipe", "--devices", "1000", "--microbatches", "100000"), "too many"),
        (("--schedule", "1f1b", "--transfer-s", "1,2"), "3 transfers"),
    ],
)
def test_bad_input_is_exit_2(arguments: tuple[str, ...], told: str) -> None:
    answer = json.loads(jellybean("pipeline", "simulate", *arguments, "--json", status=2).stdout)
    assert told in answer["error"]["message"]


PROFILE = """\
n0 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0
n1 -- Conv -- forward_compute_time=1000.0, backward_compute_time=2000.0, activation_size=4.0, parameter_size=1.0
n2 -- Linear -- forward_compute_time=500.0, backward_compute_time=500.0, activation_size=1.0, parameter_size=9000.0
\tn0 -- n1
\tn1 -- n2
"""


def test_a_model_is_cut_into_stages(tmp_path: Path) -> None:
    profile = tmp_path / "model.txt"
    profile.write_text(PROFILE, encoding="utf-8")
    flat = ("--workers", "4", "--bandwidth", "1000")
    answer = json.loads(jellybean("pipeline", "plan", str(profile), *flat, "--json").stdout)
    assert [(stage["layers"], stage["replicas"]) for stage in answer["stages"]] == [(["Conv"], 3), (["Linear"], 1)]
    assert answer["objective_s"] == pytest.approx((3 + 4 * 2 / 3000) / 3)
    assert answer["gap"] == 0
    two = ("--workers", "2,2", "--bandwidth", "1e6,1e3")
    inside = json.loads(jellybean("pipeline", "plan", str(profile), *two, "--json").stdout)["stages"]
    assert sum(stage["replicas"] for stage in inside) <= 2
    assert all(stage["stages"] for stage in inside)
    text = jellybean("pipeline", "plan", str(profile), *flat).stdout
    assert "the fastest there is" in text
    refused = jellybean("pipeline", "plan", str(profile), "--workers", "4,4", "--bandwidth", "1e9", status=2)
    assert "one number per level" in refused.stderr
    assert "there is no such file" in jellybean("pipeline", "plan", "none.txt", status=2).stderr
    unused = jellybean("pipeline", "plan", str(profile), "--schedule", "gpipe", status=2)
    assert "--schedule and --states" in unused.stderr
    assert "would do" in jellybean("pipeline", "plan", str(profile), *flat, "--memory", "1", status=3).stderr
    assert "say how many" in jellybean("pipeline", "plan", str(profile), *flat, "--objective", "alpa", status=2).stderr
    for objective in ("alpa", "alpa-inter", "dapple"):
        iteration = ("--objective", objective, "--microbatches", "8", "--json")
        answer = json.loads(jellybean("pipeline", "plan", str(profile), *flat, *iteration).stdout)
        assert answer["objective"] == objective
        assert sum(stage["replicas"] for stage in answer["stages"]) <= 4
    line = ("--speeds", "0.1,1", "--bandwidth", "1e3", "--objective", "latency", "--json")
    assert {
        stage["device"] for stage in json.loads(jellybean("pipeline", "plan", str(profile), *line).stdout)["stages"]
    }
    for number in ("inf", "nan"):
        assert "finite" in jellybean("pipeline", "plan", str(profile), "--workers", number, status=2).stderr
    assert "finite" in jellybean("pipeline", "compare", "--backward-s", "inf", status=2).stderr
    jellybean("pipeline", "compare", "--schedules", "chimera", "--forward-s", "1e-9")  # an order for any ratio


def test_a_plan_that_splits_layers_is_planned_only(tmp_path: Path) -> None:
    profile, plan = tmp_path / "model.txt", tmp_path / "split.json"
    profile.write_text(PROFILE, encoding="utf-8")
    alpa = ("--workers", "2", "--bandwidth", "1e12", "--microbatches", "2", "--out", str(plan), "--objective")
    split = jellybean("pipeline", "plan", str(profile), *alpa, "alpa")
    assert any(
        {"in", "out"} & {*layer["axes"]} for layer in json.loads(plan.read_text(encoding="utf-8"))["stages"][0]["split"]
    )
    assert "planned only: it splits " in split.stderr
    assert "to train it" not in split.stderr
    whole = jellybean("pipeline", "plan", str(profile), *alpa, "alpa-inter")
    assert "to train it: `plan: split.json`" in whole.stderr
    assert json.loads(plan.read_text(encoding="utf-8"))["microbatches"] == 2


@pytest.mark.parametrize("name", ["plan.json", "again.json", "profiles.yaml"])
def test_no_result_replaces_a_file_of_the_project(tmp_path: Path, name: str) -> None:
    """A plan of stages is another document than the plan to serve, whatever that is called."""
    file, before = tmp_path / name, '{\n "kind": "Plan",\n "version": 3}'
    file.write_text(before, encoding="utf-8")
    layers = tmp_path / "layers.txt"
    layers.write_text(
        "0 -- a -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=4.0\n"
    )
    for command in (("plan", str(layers)), ("profile", str(layers))):
        told = jellybean("pipeline", *command, "--out", str(file), status=2).stderr
        assert "is a file of the project, which would be lost" in " ".join(told.replace("│", " ").split())
        assert file.read_text(encoding="utf-8") == before


def test_an_unknown_objective_is_said_first_with_the_name_that_is_meant() -> None:
    for name, hint in {
        "pipedream": "did you mean 'slowest-stage'? training calls it pipedream",
        "x": "there are",
    }.items():
        refused = jellybean(
            "pipeline", "plan", "none.txt", "--objective", name, "--microbatches", "4", "--json", status=2
        )
        assert f"unknown objective '{name}'; {hint}" in json.loads(refused.stdout)["error"]["message"]


SUM = ("pipeline", "collectives", "--workers", "4", "--bytes", "4e8", "--bandwidth", "1.25e9")


def test_collectives(tmp_path: Path) -> None:
    answer = json.loads(jellybean(*SUM, "--json").stdout)
    totals = {way["way"]: way["total_bytes"] for way in answer["ways"]}
    assert totals == {"parameter-server": 3.2e9, "naive": 4.8e9, "ring": 2.4e9, "tree": 2.4e9, "butterfly": 3.2e9}
    assert {way["way"]: way["rounds"] for way in answer["ways"]}["tree"] == 4
    assert answer["duplex"] == "full"
    half = json.loads(jellybean(*SUM, "--duplex", "half", "--latency", "0.001", "--json").stdout)
    ring = next(way for way in half["ways"] if way["way"] == "ring")
    assert (ring["busiest"], ring["busiest_bytes"]) == ("every worker", 1.2e9)
    assert ring["time_s"] == pytest.approx(6 * (0.001 + 2e8 / 1.25e9))
    picture = tmp_path / "sums.svg"
    text = jellybean(*SUM, "--plot", str(picture)).stdout
    assert "full-duplex" in text and "4.80 GB" in text
    drawn = picture.read_text(encoding="utf-8")
    assert all(name in drawn for name in totals)
    assert "bytes over the busiest link" in drawn


def test_collectives_of_impossible_sizes() -> None:
    assert "--bytes -1: write a number" in jellybean(*SUM[:4], "--bytes", "-1", "--bandwidth", "1", status=2).stderr
    assert "--latency nan" in jellybean(*SUM, "--latency", "nan", status=2).stderr
    assert "'--workers'" in jellybean(*SUM, "--workers", "513", status=2).stderr
