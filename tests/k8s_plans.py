"""Plans and settings for deployments: the examples' plans with models, and random ones with sites and odd names."""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import replace

from jellybean_k8s import DeploymentSettings, ModelSource, PodSettings, PoolSettings
from jellybean_solver import Deliver, ModelRef, Plan, PlannedWorker, PlannedWorkflow, Route
from jellybean_solver.model.workflow import qualified_name
from tests.property.simulator.plans import random_plan

SETTINGS = DeploymentSettings(
    {"cpu": "registry.example/agent:1"}, "registry.example/gateway:1", ModelSource(url="https://models.example/x")
)
_ALL_PODS = PodSettings(
    cpu_limit=4.0,
    priority="serving",
    labels={"team": "vision"},
    tolerations=({"key": "dedicated", "operator": "Exists"},),
    env={"A": "1"},
    patch={"spec": {"initContainers": [{"name": "prepare", "imagePullPolicy": "Always"}], "dnsPolicy": "Default"}},
)
_ODD = ("Camera_Box", "x" * 60, "_pool.1", "9-lives", "a", "t4-gpu", "Pool-1.b")


def with_models(plan: Plan) -> Plan:
    """The plan with a model file for every operator that names none."""
    operators = [replace(operator, model=operator.model or model_of(operator.name)) for operator in plan.operators]
    return replace(plan, operators=tuple(operators))


def model_of(operator: str) -> ModelRef:
    """A model file of which only the hash is known."""
    return ModelRef(f"models/{operator}.onnx", hashlib.sha256(operator.encode()).hexdigest(), 1e6)


def random_deployment(rng: random.Random) -> tuple[Plan, DeploymentSettings]:
    """A random plan with pools, workers and tiers renamed, holes in the workers' numbers, sites; random settings."""
    plan = with_models(random_plan(rng))
    pools = {worker.pool for worker in plan.workers}
    names = dict(zip(sorted(pools), rng.sample(_ODD, len(pools)), strict=True))
    offset = rng.choice((0, 0, 1, 7))
    renamed = {w.name: f"{names[w.pool]}-{int(w.name.rsplit('-')[1]) + offset}" for w in plan.workers}
    plan = _renamed(plan, names, renamed)
    devices = {name: rng.choice(("cpu", "cuda", "rocm", "openvino")) for name in names.values()}
    for name, device in devices.items():
        plan = on_device(plan, name, device)
    if rng.random() < 0.3:
        plan = replace(plan, sites={plan.tiers[0]: rng.randint(2, 12)})
    models = rng.choice(
        (
            ModelSource(url="https://models.example/x", secret="token"),
            ModelSource(image="m:1", folder="/a/b"),
            ModelSource(claim="c"),
        )
    )
    chosen = {
        name: PoolSettings(
            cpu=rng.choice((0.25, 1.0, 3.0)),
            memory_bytes=rng.choice((None, 3e9)),
            gpu=_gpu_of(devices[name], rng),
            gpus=rng.randint(1, 4) if devices[name] == "openvino" else 1,
            node_labels=rng.choice(({}, {"example.com/kind": "box"})),
            one_per_node=rng.choice((None, True, False)),
        )
        for name in names.values()
        if rng.random() < 0.7
    }
    settings = replace(
        SETTINGS,
        agent_images={device: f"registry.example/agent:{device}" for device in ("cpu", "cuda", "rocm", "openvino")},
        models=models,
        pools=chosen,
        name=rng.choice((None, "Some Name", "shop")),
        gateway_tier=rng.choice((None, *plan.tiers)),
        edge_tiers=rng.choice((None, (), plan.tiers[:2])),
        drain_s=rng.choice((30.0, 0.5)),
        image_pull_secrets=rng.choice(((), ("pull",))),
        pods=rng.choice((PodSettings(), _ALL_PODS)),
    )
    return plan, settings


def random_plan_with_models(rng: random.Random) -> Plan:
    """A random plan with odd pool names and devices, sites, requests that are kept, and at times two workflows."""
    plan = random_plan(rng)
    if rng.random() < 0.3:
        plan = of_workflows({"shop": plan, "back_yard": random_plan(rng)})
    plan = with_models(plan)
    pools = sorted({worker.pool for worker in plan.workers})
    names = dict(zip(pools, rng.sample(_ODD, len(pools)), strict=True))
    offset = rng.choice((0, 0, 1, 7))
    plan = _renamed(
        plan, names, {w.name: f"{names[w.pool]}-{int(w.name.rsplit('-')[1]) + offset}" for w in plan.workers}
    )
    for name in names.values():
        plan = on_device(plan, name, rng.choice(("cpu", "cpu", "cuda", "rocm", "openvino")))
    if rng.random() < 0.2:
        plan = wide(plan, plan.workers[-1].pool, 3)
    if rng.random() < 0.3 and not plan.workflows:
        plan = replace(plan, sites={plan.tiers[0]: rng.randint(2, 6)})
    if rng.random() < 0.3:
        sources = (replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
        plan = replace(plan, sources=tuple(sources))
    return replace(plan, name=rng.choice(("test", "A workflow of many words", "n" * 63)))


def of_workflows(plans: Mapping[str, Plan]) -> Plan:
    """One plan of several on the same workers: names of operators and sources with their workflow's before them."""
    first = next(iter(plans.values()))
    workers: dict[str, PlannedWorker] = {}
    sources, operators, routes = [], [], []
    for workflow, plan in plans.items():
        name = functools.partial(qualified_name, workflow)
        sources += [replace(source, name=name(source.name)) for source in plan.sources]
        for operator in plan.operators:
            edges = (replace(e, upstream=name(e.upstream), downstream=name(e.downstream)) for e in operator.inputs)
            sizes = {name(to): size for to, size in operator.message_bytes.items()}
            operators.append(replace(operator, name=name(operator.name), inputs=tuple(edges), message_bytes=sizes))
        routes += [Route(r.weight, {name(op): worker for op, worker in r.workers.items()}) for r in plan.routes]
        for worker in plan.workers:
            before = workers.get(worker.name, replace(worker, rates_per_s={}, load=0.0))
            rates = {name(op): rate for op, rate in worker.rates_per_s.items()}
            both = {**before.rates_per_s, **rates}
            workers[worker.name] = replace(before, rates_per_s=both, load=before.load + worker.load / len(plans))
    parts = tuple(PlannedWorkflow(name, plan.slo, plan.accuracy, plan.cost) for name, plan in plans.items())
    return replace(
        first,
        sources=tuple(sources),
        operators=tuple(operators),
        workers=tuple(workers.values()),
        routes=tuple(routes),
        workflows=parts,
    )


def on_device(plan: Plan, pool: str, device: str, **options: str) -> Plan:
    """The plan with the pool's workers on the device."""
    changed = {"device": device, "device_options": tuple(sorted(options.items()))}
    workers = (replace(worker, **changed) if worker.pool == pool else worker for worker in plan.workers)
    return replace(plan, workers=tuple(workers))


def wide(plan: Plan, pool: str, count: int) -> Plan:
    """The plan with the pool's first worker `count` times, each on an equal share of its routes."""
    first = next(worker for worker in plan.workers if worker.pool == pool)
    stem = re.sub(r"[0-9]+$", "", first.name)
    copies = [replace(first, name=f"{stem}{i + 1}") for i in range(count)]
    others = [worker for worker in plan.workers if worker.pool != pool]
    routes = [
        Route(
            route.weight / count,
            {operator: copy.name if worker.startswith(stem) else worker for operator, worker in route.workers.items()},
        )
        for route in plan.routes
        for copy in copies
    ]
    return replace(plan, workers=(*others, *copies), routes=tuple(routes))


def without_pool(plan: Plan, pool: str, to: str) -> Plan:
    """The plan with the work of a pool's workers on the first worker of another pool."""
    taking = next(worker for worker in plan.workers if worker.pool == to)
    gone = {worker.name for worker in plan.workers if worker.pool == pool}
    workers = tuple(worker for worker in plan.workers if worker.pool != pool)
    routes = tuple(
        Route(r.weight, {op: taking.name if name in gone else name for op, name in r.workers.items()})
        for r in plan.routes
    )
    return replace(plan, workers=workers, routes=routes)


def _gpu_of(device: str, rng: random.Random) -> str | None:
    """A resource that a worker on the device may hold."""
    others = {"cpu": (), "cuda": ("nvidia", "nvidia.com/gpu"), "rocm": ("amd",), "openvino": ("vendor.example/gpu",)}
    return rng.choice((None, *others[device]))


def _renamed(plan: Plan, pools: dict[str, str], workers: dict[str, str]) -> Plan:
    def worker(old: PlannedWorker) -> PlannedWorker:
        return replace(old, name=workers[old.name], pool=pools[old.pool])

    return replace(
        plan,
        operators=tuple(
            replace(
                o,
                batch={pools[pool]: size for pool, size in o.batch.items()},
                service={pools[pool]: times for pool, times in o.service.items()},
                memory_bytes={pools[pool]: 1e8 for pool in o.service},
            )
            for o in plan.operators
        ),
        workers=tuple(map(worker, plan.workers)),
        routes=tuple(Route(r.weight, {op: workers[name] for op, name in r.workers.items()}) for r in plan.routes),
    )
