"""Random large projects as documents, each with a plan by construction.

A project is made around a witness (`_Witness`): a selection of variants, and the workers of the cloud divided among the
operators. The accuracy target is that of the selection, the rate a part of what these workers serve, the link carries
the sources' messages, and a p99 target is a multiple of the witness's latency.
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

Documents = dict[str, Any]


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
    rng: random.Random,
    operators: Mapping[str, Documents],
    infrastructure: Documents,
    work_ms: float,
    *,
    batches: bool = False,
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
                pool: _times(work * 1.6**index / worker["speed"] * rng.uniform(0.9, 1.1), memory, batches=batches)
                for pool, worker in infrastructure["workers"].items()
            }
            entries[name][variant] = {"latency": times, "message": f"{rng.randint(5, 60)} KiB"}
            accuracy[name][variant] = round(100.0 - loss * 0.55**index, 3)
    return {"kind": "Profiles", "operators": entries, "accuracy": {"independent": accuracy}}


def _times(alone_ms: float, memory: str, *, batches: bool) -> dict[int, Documents]:
    """Figures by batch size: a larger batch takes less time per request."""
    sizes = (1, 4, 16) if batches else (1,)
    return {size: {"mean": f"{alone_ms * (0.4 + 0.6 * size):.4f} ms", "memory": memory} for size in sizes}


@dataclass(frozen=True, slots=True)
class _Witness:
    """A plan that the project has: variants, and each worker of the cloud for one operator.

    `rate_per_s`: most requests that it serves. `factors`, `longest_s`: of each operator, the accuracy as a factor, and
    the time of a request that does not queue, transfers left out.
    """

    rate_per_s: float
    factors: Mapping[str, float]
    longest_s: Mapping[str, float]

    def of(self, prefix: str) -> _Witness:
        """The part of the operators whose names begin so."""
        factors = {name: factor for name, factor in self.factors.items() if name.startswith(prefix)}
        return _Witness(self.rate_per_s, factors, {name: self.longest_s[name] for name in factors})

    @property
    def accuracy(self) -> float:
        """Of the selection, in percent."""
        return 100.0 * math.prod(self.factors.values())

    @property
    def latency_s(self) -> float:
        """Of a request that does not queue, transfers left out."""
        return sum(self.longest_s.values())


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
    factors, seconds = dict[str, float](), dict[str, dict[str, float]]()
    for name, node in nodes.items():
        variant = rng.choice(node["variants"])
        factors[name] = profiles["accuracy"]["independent"][name][variant] / 100.0
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
    longest_s = {name: max(times) * runs[name] for name, times in own.items() if times}  # children stay together
    return _Witness(served[0][0], factors, longest_s)


def _strip(infrastructure: Documents) -> Documents:
    """Without the speeds, which only the profiles use."""
    workers = {
        name: {key: value for key, value in worker.items() if key != "speed"}
        for name, worker in infrastructure["workers"].items()
    }
    return {**infrastructure, "workers": workers}


@dataclass(frozen=True, slots=True)
class Size:
    """How large a project is.

    `load`: part of the rate that the witness serves. `slack`: the p99 target over the witness's latency. `batches`:
    profiles have batches of up to 16 as well.
    """

    operators: int
    variants: int
    pools: int
    count: int
    sharing: str = "shared"
    fan_out: int = 0
    sites: int = 1
    load: float = 0.6
    slack: float | None = None
    batches: bool = False


@dataclass(frozen=True, slots=True)
class MadeProject:
    """The documents of a project, which may be changed before they are written."""

    infrastructure: Documents
    workflow: Documents
    profiles: Documents

    @property
    def slo(self) -> Documents:
        """The targets."""
        slo: Documents = self.workflow["slo"]
        return slo

    def write(self, folder: Path) -> None:
        """Write the documents into a folder."""
        documents = {
            "infrastructure": _strip(self.infrastructure),
            "workflow": self.workflow,
            "profiles": self.profiles,
        }
        for name, document in documents.items():
            write_document(folder / f"{name}.yaml", document)


def write_document(path: Path, document: Documents) -> None:
    """Write one document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.dump(document, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=1000)
    path.write_text(text, encoding="utf-8")


class _Plain(yaml.SafeDumper):
    """YAML without anchors, which documents do not have."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write each part in full, however often it occurs."""
        return True


def make_project(rng: random.Random, size: Size) -> MadeProject:
    """A project of one workflow."""
    infrastructure = _infrastructure(rng, size.pools, size.count, size.sharing, size.sites)
    nodes = _operators(rng, size.operators, size.variants, size.fan_out)
    profiles = _profiles(rng, nodes, infrastructure, rng.choice((5.0, 15.0, 30.0)), batches=size.batches)
    inner = range(size.operators // 3, 2 * size.operators // 3) if size.fan_out else range(0)
    runs = {name: size.fan_out if number in inner else 1 for number, name in enumerate(nodes)}
    witness = _witness(rng, nodes, profiles, infrastructure, runs)
    per_s, message_kib = size.load * witness.rate_per_s, rng.randint(100, 900)
    _widen(infrastructure, per_s / size.sites * message_kib)
    workflow = _workflow("large", nodes, per_s / size.sites, message_kib, witness, size.slack)
    return MadeProject(infrastructure, workflow, profiles)


def write_workflows(
    rng: random.Random, folder: Path, size: Size, workflows: int, admission: Callable[[int], Documents] | None = None
) -> None:
    """Write a project of several workflows, each of `size.operators`, on one fleet. `admission`: of each, by number."""
    infrastructure = _infrastructure(rng, size.pools, size.count, size.sharing, 1)
    work_ms = rng.choice((5.0, 15.0, 30.0))
    names = [f"w{number}" for number in range(workflows)]
    nodes = {name: _operators(rng, size.operators, size.variants) for name in names}
    profiles = {name: _profiles(rng, nodes[name], infrastructure, work_ms) for name in names}
    every = {f"{name}/{operator}": node for name in names for operator, node in nodes[name].items()}
    together: Documents = {
        "operators": {f"{n}/{o}": entry for n in names for o, entry in profiles[n]["operators"].items()},
        "accuracy": {
            "independent": {f"{n}/{o}": of for n in names for o, of in profiles[n]["accuracy"]["independent"].items()}
        },
    }
    witness = _witness(rng, every, together, infrastructure, dict.fromkeys(every, 1))
    per_s, message_kib = size.load * witness.rate_per_s, rng.randint(100, 900)
    _widen(infrastructure, workflows * per_s * message_kib)
    write_document(folder / "infrastructure.yaml", _strip(infrastructure))
    for number, name in enumerate(names):
        own = witness.of(f"{name}/")
        workflow = _workflow(name, nodes[name], per_s, message_kib, own, size.slack)
        if admission is not None:
            workflow["admission"] = admission(number)
        write_document(folder / "workflows" / name / "workflow.yaml", workflow)
        write_document(folder / "workflows" / name / "profiles.yaml", profiles[name])


def _widen(infrastructure: Documents, kib_per_s: float) -> None:
    """Give the link to the cloud what the sources send over it, twice."""
    uplink = next(one for one in infrastructure["links"] if (one["from"], one["to"]) == (TIERS[0], TIERS[-1]))
    needed_gbit_per_s = 2.0 * kib_per_s * 8192 / UTILISATION / 1e9
    uplink["bandwidth"] = f"{max(needed_gbit_per_s, float(uplink['bandwidth'].split()[0])):.3f} Gbit/s"


def _workflow(
    name: str, nodes: Documents, per_s: float, message_kib: int, witness: _Witness, slack: float | None
) -> Documents:
    """The workflow document. `per_s`: rate of the source in one site."""
    targets: Documents = {"accuracy": math.floor(1000.0 * witness.accuracy - 1.0) / 1000.0}
    if slack is not None:
        targets["latency_p99"] = f"{slack * (witness.latency_s + MOST_LINK_S):.4g} s"
    source = {"tier": TIERS[0], "rate": f"{per_s:.4f}/s", "message": f"{message_kib} KiB"}
    return {"kind": "Workflow", "name": name, "sources": {"camera": source}, "operators": nodes, "slo": targets}
