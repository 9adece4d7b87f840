"""Random large projects as documents: each seed has the size and the features of its kind.

The kinds are those on which a search takes long: many variants and pools, exclusive workers, p99 targets, fan-outs,
sites, means of the accuracy, losses, several workflows and soft targets.

A project has a plan by construction. It is made around a witness (`_Witness`): a selection of variants, and the workers
of the cloud divided among the operators. The accuracy target is that of the selection, the rate a part of what these
workers serve, the link carries the source's messages, and a p99 target is a multiple of the witness's latency. Only
losses may leave no plan, as no witness of them is known: the benchmark says how many problems had none.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TIERS = ("edge", "hub", "cloud")
SPEEDS = {"edge": 1.0, "hub": 4.0, "cloud": 12.0}  # medium work per second
UTILISATION = 0.8  # limit of the workers' load
MOST_LINK_S = 0.06  # latency of two links
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
    limits = {"utilisation": UTILISATION}
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
    rng: random.Random, operators: Mapping[str, Documents], infrastructure: Documents, work_ms: float
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


@dataclass(frozen=True, slots=True)
class _Witness:
    """A plan that the project has: variants, and each worker of the cloud for one operator.

    `rate_per_s`: most requests that it serves. `latency_s`: of a request that does not queue, transfers left out.
    """

    accuracy: float
    rate_per_s: float
    latency_s: float


def _witness(
    rng: random.Random,
    nodes: Mapping[str, Documents],
    profiles: Documents,
    infrastructure: Documents,
    runs: Mapping[str, int],
) -> _Witness:
    """A random selection, with workers added one by one to the operator that serves the fewest requests.

    `runs`: of each operator, per request.
    """
    accuracy, seconds = 1.0, dict[str, dict[str, float]]()
    for name, node in nodes.items():
        variant = rng.choice(node["variants"])
        accuracy *= profiles["accuracy"]["independent"][name][variant] / 100.0
        times = profiles["operators"][name][variant]["latency"]
        seconds[name] = {pool: float(by_batch[1]["mean"].split()[0]) / 1000.0 for pool, by_batch in times.items()}
    workers = [
        pool
        for pool, worker in infrastructure["workers"].items()
        for _ in range(worker["count"] if worker["tier"] == TIERS[-1] else 0)
    ]
    served = [(0.0, name) for name in nodes]
    own: dict[str, list[float]] = {name: [] for name in nodes}
    for pool in workers:
        per_s, name = heapq.heappop(served)
        each_s = runs[name] * seconds[name][pool]
        own[name].append(each_s)
        heapq.heappush(served, (per_s + UTILISATION / each_s, name))
    latency_s = sum(max(times) / min(runs[name], len(times)) for name, times in own.items() if times)
    return _Witness(100.0 * accuracy, served[0][0], latency_s)


def _strip(infrastructure: Documents) -> Documents:
    """Without the speeds, which only the profiles use."""
    workers = {
        name: {key: value for key, value in worker.items() if key != "speed"}
        for name, worker in infrastructure["workers"].items()
    }
    return {**infrastructure, "workers": workers}


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
    load: float = 0.6,
    slack: float | None = None,
    slo: Callable[[Documents], Documents] = dict,
    more: Documents | None = None,
) -> None:
    """Write a project. `load`: part of the rate that the witness serves. `slack`: the p99 target over its latency."""
    infrastructure = _infrastructure(rng, pools, count, sharing, sites)
    work_ms = rng.choice((5.0, 15.0, 30.0))
    nodes = _operators(rng, operators, variants, fan_out)
    profiles = _profiles(rng, nodes, infrastructure, work_ms)
    inner = range(operators // 3, 2 * operators // 3) if fan_out else range(0)
    runs = {name: fan_out if number in inner else 1 for number, name in enumerate(nodes)}
    witness = _witness(rng, nodes, profiles, infrastructure, runs)
    per_s, message_kib = load * witness.rate_per_s, rng.randint(100, 900)
    uplink = next(one for one in infrastructure["links"] if (one["from"], one["to"]) == (TIERS[0], TIERS[-1]))
    needed_gbit_per_s = 2.0 * per_s / sites * message_kib * 8192 / UTILISATION / 1e9
    uplink["bandwidth"] = f"{max(needed_gbit_per_s, float(uplink['bandwidth'].split()[0])):.3f} Gbit/s"
    targets: Documents = {"accuracy": math.floor(1000.0 * witness.accuracy - 1.0) / 1000.0}
    if slack is not None:
        targets["latency_p99"] = f"{slack * (witness.latency_s + MOST_LINK_S):.4g} s"
    workflow = {
        "kind": "Workflow",
        "name": "large",
        "sources": {"camera": {"tier": "edge", "rate": f"{per_s / sites:.4f}/s", "message": f"{message_kib} KiB"}},
        "operators": nodes,
        "slo": slo(targets),
        **(more or {}),
    }
    _write(folder, _strip(infrastructure), workflow, profiles)


def _fleet(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=30, variants=5, pools=60, count=150)


def _exclusive(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=30, variants=5, pools=60, count=15, sharing="exclusive")


def _many_exclusive(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=20, variants=4, pools=300, count=12, sharing="exclusive")


def _fleet_in_time(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=20, variants=4, pools=45, count=60, slack=rng.choice((4.0, 10.0)))


def _middle(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=12, variants=6, pools=12, count=6)


def _in_time(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=8, variants=4, pools=6, count=8, slack=rng.choice((4.0, 10.0)))


def _fan_out(rng: random.Random, folder: Path) -> None:
    fan_out = rng.choice((100, 300, 1000))
    _project(rng, folder, operators=6, variants=3, pools=6, count=40, fan_out=fan_out, slack=rng.choice((4.0, 10.0)))


def _mean(targets: Documents) -> Documents:
    return {**targets, "accuracy": {"mean": targets["accuracy"]}}


def _mixed(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=4, variants=4, pools=9, count=12, slo=_mean)


def _mixed_in_time(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=4, variants=3, pools=6, count=10, slack=8.0, slo=_mean)


def _losses(rng: random.Random, folder: Path) -> None:
    _project(
        rng, folder, operators=4, variants=3, pools=9, count=10, load=0.3,
        slo=lambda targets: {**targets, "survive": ["1 worker", "1 link"]},
    )  # fmt: skip


def _sites(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=15, variants=4, pools=30, count=20, sites=50)


def _soft(targets: Documents) -> Documents:
    return {**targets, "latency_p99": {"target": targets["latency_p99"], "penalty": "0.01 USD/h per 10 ms"}}


def _soft_target(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=8, variants=4, pools=6, count=10, slack=2.0, slo=_soft)


def _highest(rng: random.Random, folder: Path) -> None:
    _project(rng, folder, operators=10, variants=4, pools=9, count=12, more={"objective": "rate"})


KINDS: Mapping[str, Callable[[random.Random, Path], None]] = {
    "fleet": _fleet,
    "exclusive workers": _exclusive,
    "thousands of exclusive workers": _many_exclusive,
    "fleet with a p99": _fleet_in_time,
    "twelve operators": _middle,
    "p99": _in_time,
    "fan-out and p99": _fan_out,
    "mean accuracy": _mixed,
    "mean accuracy and p99": _mixed_in_time,
    "losses": _losses,
    "identical sites": _sites,
    "soft p99": _soft_target,
    "highest rate": _highest,
}
