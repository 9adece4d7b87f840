"""Plans made by hand: shaped like the examples, and extreme ones for the drawing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jellybean.report.breakdown import break_down
from jellybean_solver import (
    Arrivals,
    Certificate,
    Cost,
    Edge,
    EdgeKind,
    Link,
    ModelRef,
    Plan,
    PlannedOperator,
    PlannedWorker,
    Route,
    ServiceTime,
    Sharing,
    Slo,
    Source,
    to_document,
)
from tests.planned import planned_operator

KIB, MIB, GIB = 2**10, 2**20, 2**30

HOP_S, FREE, UNPRICED = 0.0009, Cost(0.0, 0.0), Certificate(0.0, 0.0, 0.0, "optimal")


def vqa() -> Plan:
    """Two sources, a join, no model files: planned and simulated only."""
    cpu, gpu = ServiceTime(0.0744, 0.0744), ServiceTime(0.02156, 0.02156)
    operators = (
        planned_operator(
            "image_features",
            (Edge("image", "image_features"),),
            "resnet18",
            40.0,
            {"cpu": cpu},
            {"answer": 2 * KIB},
        ),
        planned_operator(
            "speech_to_text",
            (Edge("speech", "speech_to_text"),),
            "wav2vec2-large",
            40.0,
            {"cpu": ServiceTime(0.35, 0.35), "gpu": gpu},
            {"answer": 0.1 * KIB},
        ),
        planned_operator(
            "answer",
            (Edge("image_features", "answer"), Edge("speech_to_text", "answer")),
            "mutan",
            40.0,
            {"gpu": ServiceTime(0.0034, 0.0034)},
        ),
    )
    workers = (
        *(
            _worker("cpu", i, "edge", 0.768, {"image_features": rate}, rate * 0.0744)
            for i, rate in ((1, 13.4), (2, 13.4), (3, 13.2))
        ),
        _worker("gpu", 1, "cloud", 3.3667, {"speech_to_text": 40.0, "answer": 40.0}, 40 * (0.02156 + 0.0034)),
    )
    routes = tuple(
        Route(rate / 40, {"image_features": f"cpu-{i}", "speech_to_text": "gpu-1", "answer": "gpu-1"})
        for i, rate in ((1, 13.4), (2, 13.4), (3, 13.2))
    )
    return _priced(Plan(
        "visual-question-answering", ("edge", "cloud"),
        (Source("image", "edge", 40, 794 * KIB), Source("speech", "edge", 40, 97 * KIB)),
        operators, workers, routes, (Link("edge", "cloud", 0.1),), Slo(accuracy=56.0), 1.0,
        HOP_S, FREE, 56.59, UNPRICED,
    ))  # fmt: skip


def digits() -> Plan:
    """A fan-out, two branches that join per child, a gather; model files; all SLOs."""

    def service(**ms: float) -> dict[str, ServiceTime]:
        return {pool.replace("_", "-"): ServiceTime(x / 1e3, x / 1e3) for pool, x in ms.items()}

    def model(name: str) -> ModelRef:
        return ModelRef(f"models/{name}.onnx", "ab" * 32)

    operators = (
        planned_operator(
            "find", (Edge("strip", "find"),), "find", 12, service(edge_box=4.1), {"shape": 256, "strokes": 256},
        ),
        planned_operator(
            "shape", (Edge("find", "shape", EdgeKind.FAN_OUT, 4),), "mlp-int8", 48, service(edge_box=6.9),
            {"read": 40},
        ),
        planned_operator(
            "strokes", (Edge("find", "strokes", EdgeKind.FAN_OUT, 4),), "cnn", 48, service(cloud=5.2),
            {"read": 40},
        ),
        planned_operator(
            "read", (Edge("shape", "read"), Edge("strokes", "read")), "vote", 48, service(cloud=0.9),
            {"number": 40},
        ),
        planned_operator(
            "number", (Edge("read", "number", EdgeKind.GATHER, 0.25),), "join", 12, service(cloud=0.6)
        ),
    )  # fmt: skip
    operators = tuple(replace(operator, model=model(operator.variant)) for operator in operators)
    workers = (
        _worker("edge-box", 1, "edge", 0.096, {"find": 12, "shape": 24}, 12 * 0.0041 + 24 * 0.0069),
        _worker("edge-box", 2, "edge", 0.096, {"shape": 24}, 24 * 0.0069),
        _worker("cloud", 1, "cloud", 0.526, {"strokes": 48, "read": 48, "number": 12}, 48 * 0.0061 + 12 * 0.0006),
    )
    cloud = {"strokes": "cloud-1", "read": "cloud-1", "number": "cloud-1"}
    routes = (
        Route(0.5, {"find": "edge-box-1", "shape": "edge-box-1", **cloud}),
        Route(0.5, {"find": "edge-box-1", "shape": "edge-box-2", **cloud}),
    )
    return _priced(Plan(
        "digits", ("edge", "cloud"), (Source("strip", "edge", 12, 5 * KIB),), operators, workers, routes,
        (Link("edge", "cloud", 0.1, 12.5e6, 0.02),), Slo(accuracy=90, latency_p99_s=0.8, budget_usd_per_h=10),
        0.8, HOP_S, FREE, 93.1, UNPRICED,
    ))  # fmt: skip


def idle_hub() -> Plan:
    """`digits` on three tiers, the middle one unused, and with traffic that is a good part of the cost."""
    plan = digits()
    links = (Link("edge", "cloud", 8.0, 12.5e6, 0.02), Link("edge", "hub", 1.0), Link("hub", "cloud", 1.0))
    return _priced(replace(plan, tiers=("edge", "hub", "cloud"), links=links))


def in_batches() -> Plan:
    """`vqa` with batches on its GPU that take no longer than one request."""
    plan = vqa()

    def batched(operator: PlannedOperator) -> PlannedOperator:
        times = {
            pool: {1: times[1], 4: times[1]} if pool == "gpu" else times for pool, times in operator.service.items()
        }
        return replace(operator, service=times, batch={pool: max(sizes) for pool, sizes in times.items()})

    workers = (replace(worker, load=worker.load / 4) if worker.pool == "gpu" else worker for worker in plan.workers)
    return replace(plan, operators=tuple(map(batched, plan.operators)), workers=tuple(workers))


def one_worker(name: str = "tiny", operator: str = "classify", variant: str = "small") -> Plan:
    """The smallest plan; names are the caller's."""
    operators = (planned_operator(operator, (Edge("camera", operator),), variant, 5, {"box": ServiceTime(0.02, 0.02)}),)
    workers = (_worker("box", 1, "edge", 0.05, {operator: 5.0}, 0.1),)
    return _priced(Plan(
        name, ("edge",), (Source("camera", "edge", 5, 100 * KIB, Arrivals.PERIODIC),), operators, workers,
        (Route(1.0, {operator: "box-1"}),), (), Slo(), 0.8, HOP_S, FREE, None, UNPRICED,
    ))  # fmt: skip


def large() -> Plan:
    """Eight operators with long names on thirty workers in three tiers."""
    names = (
        "detect_vehicles_and_pedestrians", "crop_licence_plates", "read_licence_plate_characters",
        "estimate_vehicle_speed",
        "classify_vehicle_make_and_model", "re_identify_across_cameras",
        "aggregate_trajectory_features", "raise_incident",
    )  # fmt: skip
    wiring = (
        (Edge("camera", names[0]),), (Edge(names[0], names[1], EdgeKind.FAN_OUT, 4),), (Edge(names[1], names[2]),),
        (Edge(names[0], names[3]),), (Edge(names[1], names[4]),), (Edge(names[2], names[5]), Edge(names[4], names[5])),
        (Edge(names[5], names[6], EdgeKind.GATHER, 0.25),), (Edge(names[3], names[7]), Edge(names[6], names[7])),
    )  # fmt: skip
    pools = ("street-cabinet", "street-cabinet", "hub", "hub", "hub", "t4-spot", "t4-spot", "t4-spot")
    rates = (30.0, 120.0, 120.0, 30.0, 120.0, 120.0, 30.0, 30.0)
    tier = {"street-cabinet": "edge", "hub": "metro-hub", "t4-spot": "cloud"}
    price = {"street-cabinet": 0.12, "hub": 0.41, "t4-spot": 0.526}
    count = {"street-cabinet": 16, "hub": 9, "t4-spot": 5}
    time_s = (0.29, 0.021, 0.011, 0.05, 0.018, 0.024, 0.01, 0.002)
    operators = tuple(
        planned_operator(
            name, wiring[i], f"yolo-v8-{i}-int8-quantised", rates[i], {pools[i]: ServiceTime(time_s[i], time_s[i])},
            {edge.downstream: 40 * KIB for edges in wiring for edge in edges if edge.upstream == name},
        )
        for i, name in enumerate(names)
    )  # fmt: skip
    workers = tuple(
        _worker(
            pool, w, tier[pool], price[pool],
            {n: rates[i] / count[pool] for i, n in enumerate(names) if pools[i] == pool},
            sum(rates[i] / count[pool] * time_s[i] for i in range(8) if pools[i] == pool),
        )
        for pool in count
        for w in range(1, count[pool] + 1)
    )  # fmt: skip
    routes = tuple(
        Route(1 / 720, {n: f"{pools[i]}-{r % count[pools[i]] + 1}" for i, n in enumerate(names)}) for r in range(720)
    )
    links = (
        Link("edge", "metro-hub", 0.02, 125e6, 0.005),
        Link("metro-hub", "cloud", 0.05, 12.5e6, 0.02),
        Link("edge", "cloud", 0.1),
    )
    return _priced(Plan(
        "traffic-incident-detection-for-the-ring-road", ("edge", "metro-hub", "cloud"),
        (Source("camera", "edge", 30, 900 * KIB),), operators, workers, routes, links,
        Slo(accuracy=80, latency_p99_s=1.5, budget_usd_per_h=9), 0.8, HOP_S, FREE, 81.25, UNPRICED,
    ))  # fmt: skip


def prediction(plan: Plan, **changes: Any) -> dict[str, Any]:
    """What the simulator might say."""
    return {
        "cost_usd_per_h": plan.cost.total_usd_per_h,
        "accuracy": plan.accuracy,
        "throughput_per_s": plan.sources[0].rate_per_s,
        "latency_p50_s": 0.061,
        "latency_p90_s": 0.094,
        "latency_p99_s": 0.151,
        "highest_rate_per_s": plan.sources[0].rate_per_s * 1.9,
        "utilisation": {worker.name: worker.load * 0.99 for worker in plan.workers},
        **changes,
    }


def measurement(plan: Plan, **changes: Any) -> dict[str, Any]:
    """What `bench` might find of it."""
    return {
        "cost_usd_per_h": plan.cost.total_usd_per_h * 1.01,
        "accuracy": plan.accuracy - 0.4 if plan.accuracy is not None else None,
        "throughput_per_s": plan.sources[0].rate_per_s * 0.997,
        "latency_p50_s": 0.066,
        "latency_p90_s": 0.109,
        "latency_p99_s": 0.188,
        "errors": 0,
        "offered": 360,
        "completed": 360,
        "duration_s": 30.0,
        "machine": {"cpu": "Example CPU", "cores": 2},
        "utilisation": {worker.name: min(1.0, worker.load * 1.06) for worker in plan.workers},
        **changes,
    }


def document(plan: Plan) -> dict[str, Any]:
    """The plan's document."""
    return to_document(plan)


def _worker(pool: str, index: int, tier: str, price: float, rates: dict[str, float], load: float) -> PlannedWorker:
    return PlannedWorker(f"{pool}-{index}", pool, tier, price, Sharing.SHARED, rates, load)


def _priced(plan: Plan) -> Plan:
    """The plan with its cost filled in from its own flows."""
    compute = sum(worker.price_usd_per_h for worker in plan.workers)
    network = sum(flow.cost_usd_per_h for flow in break_down(plan).flows)
    total = compute + network
    return replace(plan, cost=Cost(compute, network), certificate=Certificate(total, total, 0.0, "optimal"))
