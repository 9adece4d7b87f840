"""Utilisation of the workers: planned, simulated and measured, a verdict on the measurement, and known reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from jellybean.bench.caveats import LATE
from jellybean.display import formats
from jellybean.report.breakdown import operator_loads
from jellybean.report.comparison import ROUNDING, ComparisonVerdict, figure
from jellybean.report.store import Record, Snapshot
from jellybean_solver import CPU, Plan, PlannedWorker

# Allowed distance of measured from expected utilisation. Random arrivals alone cause two standard errors of
# 2 * 0.8 / sqrt(300) = 0.09 at the default utilisation limit of 0.8 in the default window, 30 s at 10 requests/s.
TOLERANCE = 0.10
OFFERED_TOLERANCE = 0.03  # deviation of the offered from the planned rate that is named as a reason
BUSY_MACHINE = 0.85  # share of a machine's CPU time in use, above which processes often wait for a core


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """Utilisation of one worker by operator: planned, simulated and measured.

    `expected` is compared with the measurement: the simulated utilisation, or the planned `load` if the plan was not
    simulated. The load assumes full batches; partial batches take more time per request. `reasons`: known causes of a
    deviation, in words.
    """

    name: str
    pool: str
    tier: str
    price_usd_per_h: float
    loads: Mapping[str, float]
    load: float
    expected: float
    simulated: float | None
    measured: float | None
    verdict: ComparisonVerdict
    reasons: tuple[str, ...] = ()
    sites: int = 1  # number of sites with such a worker; utilisations are means over them
    device: str = CPU

    @property
    def name_with_device(self) -> str:
        """Its name, with its device unless that is the CPU."""
        return self.name if self.device == CPU else f"{self.name} on {self.device}"

    @property
    def deviates(self) -> bool:
        """True if the measurement is not within the tolerance."""
        return self.verdict in (ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER)

    @property
    def shown_deviation(self) -> str:
        """The measured beside the expected utilisation, as text."""
        word = "planned" if self.simulated is None else "simulated"
        return f"{formats.percent(self.measured)} measured, {formats.percent(self.expected)} {word}"


def worker_uses(plan: Plan, snapshot: Snapshot, benches: Collection[Record]) -> tuple[WorkerUse, ...]:
    """Utilisation of each worker of a plan, in the plan's order.

    `benches`: a measurement of each workflow, at the same time, or empty; their times on shared workers add up.
    """
    simulation = snapshot.prediction.record if snapshot.prediction is not None else {}
    bench = _added_up(benches)
    simulated, measured = simulation.get("utilisation") or {}, bench.get("utilisation") or {}
    return tuple(
        _worker_use(plan, worker, figure(simulated, worker.name), figure(measured, worker.name), bench)
        for worker in plan.workers
    )


def _added_up(benches: Collection[Record]) -> Record:
    """What measurements at the same time say together of workers and the machine."""
    if len(benches) < 2:
        return next(iter(benches), {})
    used: dict[str, float] = {}
    late: dict[str, float] = {}
    for bench in benches:
        for name, share in (bench.get("utilisation") or {}).items():
            used[name] = used.get(name, 0.0) + share
        for name, share in (bench.get("late") or {}).items():
            late[name] = max(share, late.get(name, 0.0))
    cpu = max((figure(bench, "machine_cpu") or 0.0 for bench in benches), default=0.0)
    return {"utilisation": used, "late": late, "machine_cpu": cpu}


def _worker_use(
    plan: Plan, worker: PlannedWorker, simulated: float | None, measured: float | None, bench: Record
) -> WorkerUse:
    expected = worker.load if simulated is None else simulated
    verdict = _verdict(expected, measured)
    return WorkerUse(
        name=worker.name,
        pool=worker.pool,
        tier=worker.tier,
        price_usd_per_h=worker.price_usd_per_h,
        loads=operator_loads(plan, worker),
        load=worker.load,
        expected=expected,
        simulated=simulated,
        measured=measured,
        verdict=verdict,
        reasons=tuple(_reasons(plan, worker, simulated, bench, verdict)),
        sites=plan.sites.get(worker.tier, 1),
        device=worker.device,
    )


def _verdict(expected: float, measured: float | None) -> ComparisonVerdict:
    if measured is None:
        return ComparisonVerdict.UNKNOWN
    if abs(measured - expected) <= TOLERANCE + ROUNDING:
        return ComparisonVerdict.WITHIN
    return ComparisonVerdict.HIGHER if measured > expected else ComparisonVerdict.LOWER


def _reasons(
    plan: Plan, worker: PlannedWorker, simulated: float | None, bench: Record, verdict: ComparisonVerdict
) -> Iterator[str]:
    """Known causes of a deviation; none if there is no deviation."""
    if verdict not in (ComparisonVerdict.HIGHER, ComparisonVerdict.LOWER):
        return
    higher = verdict is ComparisonVerdict.HIGHER
    rate_scale = _offered_over_planned(plan, bench)
    excess = (rate_scale - 1) * (1 if higher else -1)
    if excess > OFFERED_TOLERANCE:
        yield f"{rate_scale:.2f} times the planned rate was offered in the window"
    if higher:
        late = max((figure(bench.get("late"), name) or 0.0 for name in _processes(worker, bench)), default=0.0)
        cpu = figure(bench, "machine_cpu")
        if late > LATE:
            yield f"{formats.percent(late)} of its busy time it was slower than the device that it emulates"
        if cpu is not None and cpu >= BUSY_MACHINE:
            yield f"the CPUs of this machine were {formats.percent(cpu)} busy, so processes waited for each other"
    batched = any(plan.operator_at(name, worker.name).batch[worker.pool] > 1 for name in worker.rates_per_s)
    if higher and batched and simulated is None:
        yield "the plan assumes full batches, and smaller ones take more time per request"


def _processes(worker: PlannedWorker, bench: Record) -> Iterator[str]:
    """Names of the processes of a worker in a measurement: `box-2`, or in each site `store-1/box-2`."""
    return (name for name in bench.get("late") or {} if name.rpartition("/")[2] == worker.name)


def _offered_over_planned(plan: Plan, bench: Record) -> float:
    """Requests that were offered in the window over those planned; 1 if unknown."""
    offered, duration_s = figure(bench, "offered"), figure(bench, "duration_s")
    planned_per_s = plan.sources[0].rate_per_s * plan.sites.get(plan.sources[0].tier, 1)
    if plan.workflows or not offered or not duration_s:
        return 1.0
    return offered / duration_s / planned_per_s
