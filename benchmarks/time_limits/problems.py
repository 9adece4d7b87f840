"""Random large projects as documents: each seed has the size and the features of its kind.

The kinds are those on which a search takes long: many variants and pools, exclusive workers, p99 targets, fan-outs,
sites, means of the accuracy, losses, several workflows and soft targets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

TIERS = ("edge", "hub", "cloud")
SPEEDS = {"edge": 1.0, "hub": 4.0, "cloud": 12.0}  # medium work per second
PROBLEMS = 60

Documents = dict[str, Any]


def write_problem(seed: int, folder: Path) -> str:
    """Write the documents of a seed into a folder; returns its kind."""
    kind = list(KINDS)[seed % len(KINDS)]
    rng = random.Random(f"time-limits/{seed}")
    KINDS[kind](rng, folder)
    return kind


def _write(folder: Path, infrastructure: Documents, workflow: Documents, profiles: Documents) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in (("infrastructure", infrastructure), ("workflow", workflow), ("profiles", profiles)):
        text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=1000)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def _infrastructure(rng: random.Random, pools: int, count: int, sharing: str = "shared", sites: int = 1) -> Documents:
    workers: Documents = {}
    for number in range(pools):
        tier = TIERS[number % 3]
        speed = SPEEDS[tier] * rng.lognormvariate(0.0, 0.4)
        workers[f"p{number}"] = {
            "tier": tier,
            "count": max(1, round(count * rng.uniform(0.3, 1.5))),
            "price": f"{0.05 * speed**0.9 * rng.uniform(0.8, 1.25):.4f} USD/h",
            "memory": f"{rng.choice((4, 8, 16))} GiB",
            "sharing": sharing,
            "speed": round(speed, 3),
        }
    links = [
        {
            "from": low,
            "to": high,
            "price": f"{rng.uniform(0.01, 0.1):.3f} USD/GiB",
            "bandwidth": f"{rng.choice((1, 10, 40))} Gbit/s",
            "latency": f"{rng.uniform(2, 30):.1f} ms",
        }
        for low, high in (("edge", "hub"), ("edge", "cloud"), ("hub", "cloud"))
    ]
    limits = {"utilisation": 0.8}
    document = {"kind": "Infrastructure", "tiers": list(TIERS), "workers": workers, "links": links, "limits": limits}
    return document if sites == 1 else {**document, "sites": {"edge": sites}}


def _operators(rng: random.Random, count: int, variants: int, fan_out: int = 0) -> dict[str, Documents]:
    """A layered workflow; with `fan_out`, the operators of its second third are behind a fan-out of that ratio."""
    operators: dict[str, Documents] = {}
    names = [f"o{number}" for number in range(count)]
    inner = range(count // 3, 2 * count // 3) if fan_out else range(0)
    for number, name in enumerate(names):
        inputs: list[Any] = [names[number - 1]] if number else ["camera"]
        if number in inner:
            inputs = [{"from": names[number - 1], "ratio": fan_out}] if number == inner.start else inputs
        elif fan_out and number == inner.stop:
            inputs = [{"from": names[number - 1], "gather": True}]
        elif number > 2 and not fan_out and rng.random() < 0.5:
            inputs = sorted({names[number - 1], names[rng.randrange(number - 1)]})
        operators[name] = {"inputs": inputs, "variants": [f"v{index}" for index in range(variants)]}
    return operators


def _profiles(
    rng: random.Random, operators: Mapping[str, Documents], infrastructure: Documents, work_ms: float, jobs: int = 1
) -> Documents:
    """Latencies by pool from the operator's work and the pool's speed; accuracies that multiply."""
    entries: Documents = {}
    accuracy: Documents = {}
    for name, operator in operators.items():
        work = work_ms * rng.lognormvariate(0.0, 0.5)
        loss = rng.uniform(0.3, 2.0)
        entries[name], accuracy[name] = {}, {}
        for index, variant in enumerate(operator["variants"]):
            memory = f"{round(100 * 1.5**index)} MiB"
            times = {
                pool: {
                    1: {
                        "mean": f"{work * 1.6**index / worker['speed'] * rng.uniform(0.9, 1.1):.4f} ms",
                        "memory": memory,
                    }
                }
                for pool, worker in infrastructure["workers"].items()
            }
            entries[name][variant] = {"latency": times, "message": f"{rng.randint(5, 60)} KiB"}
            accuracy[name][variant] = round(100.0 - loss * 0.55**index, 3)
    return {"kind": "Profiles", "operators": entries, "accuracy": {"independent": accuracy}}


def _target(rng: random.Random, profiles: Documents) -> float:
    """An accuracy between those of the worst and the best variants."""
    worst = best = 1.0
    for levels in profiles["accuracy"]["independent"].values():
        worst *= min(levels.values()) / 100.0
        best *= max(levels.values()) / 100.0
    return round(100.0 * (worst + rng.uniform(0.3, 0.7) * (best - worst)), 3)


def _strip(infrastructure: Documents) -> Documents:
    """Without the speeds, which only the profiles use."""
    workers = {
        name: {key: value for key, value in worker.items() if key != "speed"}
        for name, worker in infrastructure["workers"].items()
    }
    return {**infrastructure, "workers": workers}


def _rate(infrastructure: Documents, operators: int, work_ms: float, load: float, jobs: float = 1.0) -> float:
    """Requests per second at which operators of medium variants load the fleet so much."""
    power: float = sum(worker["count"] * worker["speed"] for worker in infrastructure["workers"].values())
    return load * 0.8 * power / (2.2 * operators * work_ms / 1000.0 * jobs)


def _project(
    rng: random.Random,
    folder: Path,
    *,
    operators: int,
    variants: int,
    pools: int,
    count: int,
    sharing: str = "shared",
    fan_out: int = 0,
    sites: int = 1,
    load: float = 0.35,
    slo: Callable[[float], Documents] = lambda accuracy: {"accuracy": accuracy},
    more: Documents | None = None,
    rate: float | None = None,
) -> None:
    infrastructure = _infrastructure(rng, pools, count, sharing, sites)
    work_ms = rng.choice((5.0, 15.0, 30.0))
    nodes = _operators(rng, operators, variants, fan_out)
    profiles = _profiles(rng, nodes, infrastructure, work_ms)
    jobs = 1.0 if not fan_out else (2 + fan_out) / 3.0
    per_s = _rate(infrastructure, operators, work_ms, load, jobs) if rate is None else rate
    workflow = {
        "kind": "Workflow",
        "name": "large",
        "sources": {
            "camera": {"tier": "edge", "rate": f"{per_s / sites:.4f}/s", "message": f"{rng.randint(100, 900)} KiB"}
        },
        "operators": nodes,
        "slo": slo(_target(rng, profiles)),
        **(more or {}),
    }
    _write(folder, _strip(infrastructure), workflow, profiles)


def _p99(seconds: float) -> Callable[[float], Documents]:
    return lambda accuracy: {"accuracy": accuracy, "latency_p99": f"{seconds:g} s"}


def _fleet(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=30, variants=5, pools=60, count=150)


def _exclusive(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=30, variants=5, pools=60, count=15, sharing="exclusive")


def _fleet_in_time(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=20, variants=4, pools=45, count=60, slo=_p99(rng.choice((0.6, 1.0, 2.0))))


def _middle(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=12, variants=6, pools=12, count=6)


def _in_time(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=8, variants=4, pools=6, count=8, slo=_p99(rng.choice((0.15, 0.3, 0.6))))


def _fan_out(rng: random.Random, folder: Path) -> None:
    _project(
        rng, folder, operators=6, variants=3, pools=6, count=40, fan_out=rng.choice((100, 300, 1000)),
        slo=_p99(rng.choice((5.0, 20.0))),
    )  # fmt: skip


def _mixed(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=4, variants=4, pools=9, count=12, slo=lambda a: {"accuracy": {"mean": a}})


def _mixed_in_time(rng: random.Random, folder: Path) -> None:
    _project(
        rng, folder, operators=4, variants=3, pools=6, count=10,
        slo=lambda a: {"accuracy": {"mean": a}, "latency_p99": "400 ms"},
    )  # fmt: skip


def _losses(rng: random.Random, folder: Path) -> None:
    _project(
        rng, folder, operators=4, variants=3, pools=9, count=10,
        slo=lambda a: {"accuracy": a, "survive": ["1 worker", "1 link"]},
    )  # fmt: skip


def _sites(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=15, variants=4, pools=30, count=20, sites=50, load=0.2)


def _soft(rng: random.Random, folder: Path) -> None:
    _project(
        rng, folder, operators=8, variants=4, pools=6, count=10,
        slo=lambda a: {"accuracy": a, "latency_p99": {"target": "100 ms", "penalty": "0.01 USD/h per 10 ms"}},
    )  # fmt: skip


def _highest(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=10, variants=4, pools=9, count=12, more={"objective": "rate"})


KINDS: Mapping[str, Callable[[random.Random, Path], None]] = {
    "fleet": _fleet,
    "exclusive workers": _exclusive,
    "fleet with a p99": _fleet_in_time,
    "twelve operators": _middle,
    "p99": _in_time,
    "fan-out and p99": _fan_out,
    "mean accuracy": _mixed,
    "mean accuracy and p99": _mixed_in_time,
    "losses": _losses,
    "identical sites": _sites,
    "soft p99": _soft,
    "highest rate": _highest,
}
