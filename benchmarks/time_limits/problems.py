"""Random large problems: each seed has the size and the features of its kind.

The kinds are those on which a search takes long, and together they have each feature of docs/documents.md. Each problem
has a plan by construction (`projects.py`), but for losses: no witness of them is known. The benchmark says how many
problems had none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from onnx import TensorProto, helper, save_model

from benchmarks.time_limits.projects import (
    TIERS,
    Documents,
    MadeProject,
    Size,
    make_project,
    write_workflows,
)

PROBLEMS = 62  # two of each kind

SLACKS = (4.0, 10.0)


def write_problem(seed: int, folder: Path) -> str:
    """Write the documents of a seed into a folder; returns its kind."""
    kind = list(KINDS)[seed % len(KINDS)]
    KINDS[kind](random.Random(f"time-limits/{seed}"), folder)
    return kind


Write = Callable[[random.Random, Path], None]


def _plain(*sizes: Size) -> Write:
    """A project of one of some sizes."""

    def write(rng: random.Random, folder: Path) -> None:
        make_project(rng, rng.choice(sizes)).write(folder)

    return write


def _changed(change: Callable[[MadeProject], None], *sizes: Size) -> Write:
    """A project of one of some sizes, with a change of its documents."""

    def write(rng: random.Random, folder: Path) -> None:
        project = make_project(rng, rng.choice(sizes))
        change(project)
        project.write(folder)

    return write


def _mean(project: MadeProject) -> None:
    project.slo["accuracy"] = {"mean": project.slo["accuracy"]}


def _soft_mean(project: MadeProject) -> None:
    project.slo["accuracy"] = {"mean": project.slo["accuracy"] + 1.0, "penalty": "2 USD/h"}


def _most_accurate(project: MadeProject) -> None:
    """Of all plans within a budget, that the witness keeps."""
    workers = project.infrastructure["workers"].values()
    usd_per_h = sum(worker["count"] * float(worker["price"].split()[0]) for worker in workers)
    project.slo["accuracy"] = {"least": project.slo["accuracy"]}
    project.slo["budget"] = f"{usd_per_h:.2f} USD/h"
    project.workflow["objective"] = "mean_accuracy"


def _losses(*what: str) -> Callable[[MadeProject], None]:
    def change(project: MadeProject) -> None:
        project.slo["survive"] = list(what)

    return change


def _spot(project: MadeProject) -> None:
    """Every third pool is of spot workers, whose loss is survived, and another third reserved."""
    _terms(project)
    project.slo["survive"] = ["1 spot worker"]


def _terms(project: MadeProject) -> None:
    for number, worker in enumerate(project.infrastructure["workers"].values()):
        worker["terms"] = ("on_demand", "reserved", "spot")[number // len(TIERS) % 3]
        if worker["terms"] == "spot":
            worker["billing"] = "1 min"


def _soft_p99(project: MadeProject) -> None:
    project.slo["latency_p99"] = {"target": project.slo["latency_p99"], "penalty": "0.01 USD/h per 10 ms"}


def _objective(name: str) -> Callable[[MadeProject], None]:
    def change(project: MadeProject) -> None:
        project.workflow["objective"] = name

    return change


def _residency(project: MadeProject) -> None:
    """Operators that run in some tiers only, data that stays in some, and devices with a memory of their own."""
    operators = [*project.workflow["operators"].values()]
    operators[-1]["tiers"] = list(TIERS[1:])
    operators[0]["inputs"] = [{"from": "camera", "stays_in": list(TIERS)}]
    for number, worker in enumerate(project.infrastructure["workers"].values()):
        if worker["tier"] == TIERS[-1] and number % 2:
            worker |= {"device": "cuda", "device_memory": "16 GiB", "speed": 1}
            if number % 4 == 1:
                worker |= {"share": {"slots": 2}}
    for variants in project.profiles["operators"].values():
        for variant in variants.values():
            for by_batch in variant["latency"].values():
                for figures in by_batch.values():
                    figures["device_memory"] = figures["memory"]


def _measured_selections(project: MadeProject) -> None:
    """The accuracy of each selection of the first operators, which the others do not change."""
    independent: Documents = project.profiles["accuracy"]["independent"]
    first = list(independent)[:4]
    selections: list[Documents] = [{}]
    for name in first:
        selections = [{**chosen, name: variant} for chosen in selections for variant in independent[name]]
    target = project.slo["accuracy"]
    entries = [
        {"selection": chosen, "accuracy": round(target + 0.001 * number, 3)} for number, chosen in enumerate(selections)
    ]
    for node in [*project.workflow["operators"].values()][4:]:
        node["variants"] = node["variants"][:1]
    for name, variants in project.profiles["operators"].items():
        if name not in first:
            project.profiles["operators"][name] = dict([*variants.items()][:1])
    project.profiles["accuracy"] = {"end_to_end": entries}


def _request_streams(project: MadeProject) -> None:
    """The second half of the operators reads a microphone of a tenth of the rate."""
    camera = project.workflow["sources"]["camera"]
    rate_per_s = float(camera["rate"].removesuffix("/s"))
    project.workflow["sources"]["microphone"] = {**camera, "rate": f"{rate_per_s / 10:.4f}/s"}
    operators = project.workflow["operators"]
    names = list(operators)
    half = len(names) // 2
    for number in range(half, len(names)):
        kept = [name for name in operators[names[number]]["inputs"] if name in names[half:]]
        operators[names[number]]["inputs"] = kept or ["microphone"]


def _audit(project: MadeProject) -> None:
    project.slo["audit"] = "1 %"


def _states(project: MadeProject) -> None:
    """The first operator keeps a state by stream."""
    operator = project.workflow["operators"]["o0"]
    operator["state"] = {"by": "stream", "tensors": {"state": "state_next"}}
    project.workflow["sources"]["camera"]["streams"] = 40


def _cascade(project: MadeProject) -> None:
    """An operator in the middle may be a cascade of its first and its last variant."""
    operators, profiles = project.workflow["operators"], project.profiles
    name = list(operators)[len(operators) // 2]
    variants = operators[name]["variants"]
    first, then = variants[0], variants[-1]
    when = "softmax(scores) < 0.9"
    operators[name]["inputs"] = operators[name]["inputs"][:1]
    operators[name]["variants"] = {
        **{variant: {} for variant in variants},
        "both": {"cascade": {"first": first, "then": then, "when": when}},
    }
    own = profiles["operators"][name]
    step = {"message": "60 KiB", "latency": {pool: {1: "0.06 ms"} for pool in own[first]["latency"]}}
    independent = profiles["accuracy"]["independent"]
    profiles["cascades"] = {
        name: {
            "both": {
                "operators": {
                    f"{name}.first": {first: own[first]},
                    f"{name}.unsure": {"both": {**step, "children": ["70 %", "30 %"]}},
                    f"{name}.then": {then: own[then]},
                    name: {"both": {**step, "message": own[then]["message"]}},
                },
                "accuracy": {"independent": {**independent, name: {"both": independent[name][then] - 0.001}}},
            }
        }
    }


def _cut_models(rng: random.Random, folder: Path) -> None:
    """Two operators of one variant, which may be cut."""
    project = make_project(rng, Size(operators=8, variants=3, pools=9, count=10))
    for name in ("o1", "o2"):
        operator, own = project.workflow["operators"][name], project.profiles["operators"][name]["v0"]
        for variants in (project.profiles["operators"][name], project.profiles["accuracy"]["independent"][name]):
            for variant in operator["variants"][1:]:
                del variants[variant]
        operator["inputs"] = operator["inputs"][:1]
        operator["cuts"] = 2
        whole = _model(folder, f"models/{name}.onnx")
        operator["variants"] = {"v0": whole}
        own["cuts"] = [
            {
                "layers": layers,
                "of": 9,
                "crossing": f"{20 * layers} KiB",
                "inputs": operator["inputs"],
                "whole": whole["sha256"],
                "head": {**_model(folder, f"models/stages/{name}.{layers}.head.onnx"), "latency": own["latency"]},
                "tail": {**_model(folder, f"models/stages/{name}.{layers}.tail.onnx"), "latency": own["latency"]},
            }
            for layers in (3, 6)
        ]
    project.write(folder)


def _model(folder: Path, name: str) -> Documents:
    """A small model file in a model's place: plans are made without loading it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [None, 4]) for port in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], path.stem, ports[:1], ports[1:])
    save_model(helper.make_model(graph, ir_version=9), path)
    return {"model": name, "sha256": sha256(path.read_bytes()).hexdigest()}


def _unlike_sites(rng: random.Random, folder: Path) -> None:
    """Sixty sites with unlike rates and boxes."""
    project = make_project(rng, Size(operators=5, variants=3, pools=9, count=30, sites=60, load=0.4))
    rate_per_s = float(project.workflow["sources"]["camera"]["rate"].removesuffix("/s"))
    project.infrastructure["sites"] = {TIERS[0]: "sites.csv"}
    rows = [f"site-{number},{rate_per_s * rng.uniform(0.3, 1.2):.4f}/s,{rng.randint(0, 40)}" for number in range(1, 61)]
    project.write(folder)
    text = "\n".join(["site,sources.camera.rate,workers.p0.count", *rows])
    (folder / "sites.csv").write_text(text + "\n", encoding="utf-8")


def _workflows(workflows: int, size: Size, admission: Callable[[int], Documents] | None = None) -> Write:
    def write(rng: random.Random, folder: Path) -> None:
        write_workflows(rng, folder, size, workflows, admission)

    return write


def _worth(number: int) -> Documents:
    return {"worth": f"{1 + number % 7} USD/h", "priority": number % 2, "owner": f"team-{number % 3}"}


def _in_time(size: Size) -> tuple[Size, ...]:
    """The size with each p99 target."""
    return tuple(replace(size, slack=slack) for slack in SLACKS)


def _fan_outs(size: Size) -> tuple[Size, ...]:
    return tuple(replace(size, fan_out=ratio, slack=slack) for ratio in (100, 300, 1000) for slack in SLACKS)


SMALL = Size(operators=4, variants=3, pools=9, count=10, load=0.3)
MIXED = Size(operators=4, variants=4, pools=9, count=12)
EIGHT = Size(operators=8, variants=4, pools=6, count=8)

KINDS: Mapping[str, Write] = {
    "fleet": _plain(Size(operators=30, variants=5, pools=60, count=150)),
    "exclusive workers": _plain(Size(operators=30, variants=5, pools=60, count=15, sharing="exclusive")),
    "thousands of exclusive workers": _plain(Size(operators=20, variants=4, pools=300, count=12, sharing="exclusive")),
    "fleet with a p99": _plain(*_in_time(Size(operators=20, variants=4, pools=45, count=60))),
    "twelve operators": _plain(Size(operators=12, variants=6, pools=12, count=6)),
    "p99": _plain(*_in_time(EIGHT)),
    "batches and p99": _plain(*_in_time(Size(operators=8, variants=3, pools=6, count=8, batches=True))),
    "fan-out and p99": _plain(*_fan_outs(Size(operators=6, variants=3, pools=6, count=40))),
    "mean accuracy": _changed(_mean, MIXED),
    "mean accuracy and p99": _changed(_mean, Size(operators=4, variants=3, pools=6, count=10, slack=8.0)),
    "soft mean accuracy": _changed(_soft_mean, MIXED),
    "highest mean accuracy": _changed(_most_accurate, MIXED),
    "losses of workers and links": _changed(_losses("1 worker", "1 link"), SMALL),
    "losses in a fleet of pools": _changed(
        _losses("1 worker", "1 link"), Size(operators=5, variants=4, pools=24, count=10, load=0.3)
    ),
    "losses of sites, and p99": _changed(
        _losses("1 worker", "1 site"), Size(operators=3, variants=3, pools=9, count=10, load=0.3, slack=8.0)
    ),
    "losses of spot workers": _changed(_spot, SMALL),
    "reserved and spot workers": _changed(_terms, Size(operators=20, variants=4, pools=45, count=60)),
    "identical sites": _plain(Size(operators=15, variants=4, pools=30, count=20, sites=50)),
    "sites that differ": _unlike_sites,
    "soft p99": _changed(_soft_p99, Size(operators=8, variants=4, pools=6, count=10, slack=2.0)),
    "highest rate": _changed(_objective("rate"), Size(operators=10, variants=4, pools=9, count=12)),
    "least latency": _changed(_objective("latency"), Size(operators=6, variants=3, pools=6, count=12)),
    "tiers, residency and devices": _changed(_residency, Size(operators=20, variants=4, pools=45, count=60)),
    "measured selections": _changed(_measured_selections, Size(operators=10, variants=5, pools=30, count=20)),
    "request streams": _changed(_request_streams, Size(operators=16, variants=4, pools=30, count=30)),
    "audits": _changed(_audit, Size(operators=10, variants=4, pools=18, count=30)),
    "cascades": _changed(_cascade, Size(operators=10, variants=4, pools=18, count=30)),
    "cut models": _cut_models,
    "several workflows": _workflows(6, Size(operators=6, variants=4, pools=15, count=30)),
    "many workflows with a p99": _workflows(30, Size(operators=4, variants=3, pools=9, count=60, slack=6.0)),
    "who is served": _workflows(20, Size(operators=4, variants=3, pools=9, count=40), _worth),
}
