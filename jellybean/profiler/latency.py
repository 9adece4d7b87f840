"""Measures the busy time of a worker for one batch, through the executor that serves.

Every point (model, speed, batch) is measured in several short blocks, round-robin over all points, so that drift of the
machine affects all alike; the spread of a point's block medians measures its noise. A pause before each run keeps
caches as cold as in service: small models run several times faster in a tight loop.

A device of another speed is emulated: its latency is the model's compute time here over its speed, plus the overhead of
a call. The compute time is the least CPU time of many runs back to back, because load of the machine only adds to it.
The overhead is the CPU time that a run after a pause takes beyond that (the call, cold caches). It is part of every
measured time of a real device, so it is part of an emulated one, too; it is paid here, so the speed does not scale it.
All emulated speeds share this measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from jellybean.profiler.cache import Cache, key_of, key_of_device
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import load, load_tried
from jellybean.profiler.refusals import refusal
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Array, Inputs, Model, RunInputs, Workload
from jellybean_agent import (
    CPU,
    PAUSE_S,
    WARM_UP_BELOW_S,
    WARM_UP_RUNS,
    AgentError,
    Block,
    Device,
    Executor,
    arrays_of,
    batched,
    busy_neighbours,
    neighbour_count,
    stack_requests,
    timed_runs,
)
from jellybean_solver import EdgeKind, OutOfTimeError

BLOCKS = 4
BATCH_SHARE = 0.3  # time spent on a point with batch size above 1, as a share of that for batch size 1 (varies more)
COMPUTE_INPUTS = 3  # inputs whose CPU time is measured for emulated devices
VARIED_INPUTS = 8  # the same if the sample's inputs differ in shape, as then the time does too
COMPUTE_RUNS = 5  # minimum number of runs per input and block, back to back and after pauses; slow models: 1
SAME_OUTPUT = 1e-3  # difference of two outputs that is rounding, as a share of the largest absolute value
# Difference, as a share of the largest value, above which a model mixes its requests: no batches. Dynamic quantization,
# whose batches stay with a note, was at most 0.02; a softmax, sum or mean over the rows at least 0.9.
MIXED_OUTPUT = 0.1
ROUNDING_STEPS = 8  # the same in steps of the outputs' type, which is more for float16
COLD_SHARE = 0.5  # time spent on runs after pauses, as a share of the time of an emulated point


@dataclass(frozen=True)
class Point:
    """One measurement: a model at a device speed and batch size. Worker types of equal speed and device share it.

    `speed`: relative to this machine; any speed but 1 is emulated, on the CPU.
    """

    model: Model
    speed: float
    batch: int
    device: Device = CPU

    @property
    def emulated(self) -> bool:
        return self.speed != 1.0


@dataclass(frozen=True)
class Latency:
    """Busy seconds of one batch. `noise`: interquartile range of the block medians, relative to their median."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    noise: float


@dataclass(frozen=True)
class BatchDifference:
    """Largest difference between an output in a batch of `batch` requests and the same output alone.

    `largest_value`: the largest absolute value of the outputs that were compared; `is_float`: of what type they are.
    """

    batch: int
    difference: float
    largest_value: float
    is_float: bool = True

    @property
    def is_mixed(self) -> bool:
        """True if the model computes over its rows, which then are no requests of their own: they may be steps in time.

        Integers may be class labels, of which a little rounding makes others.
        """
        return self.is_float and self.difference > MIXED_OUTPUT * self.largest_value


def _severity(found: BatchDifference) -> tuple[bool, float]:
    """Outputs have scales of their own: a small one that is mixed says more than a large one that is not."""
    return found.is_mixed, found.difference / (found.largest_value or 1.0)


class LatencyMeter:
    """Measures points block by block: `measure` one block, `result` over all blocks of a point."""

    def __init__(self, workload: Workload, survey: Survey, cache: Cache, seconds_per_point: float) -> None:
        self._workload, self._inputs, self._rows, self._cache = workload, survey.inputs, survey.rows, cache
        self._block_s = seconds_per_point / BLOCKS
        self._executors: dict[tuple[Model, Device], Executor] = {}
        self._trials: dict[Model, Executor] = {}
        self._took_s: dict[Point, float] = {}
        self.mixed: dict[Model, BatchDifference] = {}  # models that no batch is measured of, and why

    def expected_s(self, point: Point) -> float:
        """Expected duration in seconds of one more block of a point."""
        return self._took_s.get(point, self.block_s(point))

    def block_s(self, point: Point) -> float:
        """Seconds of timed runs in one block of a point."""
        return self._block_s if point.batch == 1 else BATCH_SHARE * self._block_s

    def key(self, point: Point, block: int) -> str:
        """The cache key of one block."""
        model = point.model
        return key_of(
            kind="compute and overhead" if point.emulated else "latency",
            model=(model.operator, model.variant, model.sha256),
            batch=point.batch,
            block=block,
            seconds=self.block_s(point),
            work=self._workload.digest,
            inputs=(COMPUTE_INPUTS, VARIED_INPUTS),
            **({"beside": beside} if (beside := neighbour_count(model.code[0], point.device)) else {}),
            **key_of_device(point.device),
        )

    def measure(self, point: Point, block: int) -> None:
        """Measure one block of a point, unless it is in the cache."""
        key = self.key(point, block)
        if key in self._cache:
            return
        model = point.model
        inputs = batched(self._inputs[model.operator], point.batch)
        began = time.perf_counter()
        try:
            samples = self._compute(point, inputs) if point.emulated else self._samples(point, inputs, block)
        except AgentError as error:
            raise self._refusal(model, self._executor(model, point.device), error) from error
        self._cache.put(key, samples)
        self._took_s[point] = time.perf_counter() - began

    def _refusal(self, model: Model, executor: Executor, error: AgentError) -> ProfileError:
        """The error of the first sample input that the model refuses alone; else of a batch, without a row."""
        for row, inputs in zip(self._rows.get(model.operator, ()), self._inputs[model.operator], strict=False):
            try:
                executor.run(inputs)
            except AgentError as refused:
                return refusal(self._workload, executor, model, inputs, row, refused)
        return refusal(self._workload, executor, model, self._inputs[model.operator][0], None, error)

    def _samples(self, point: Point, inputs: Sequence[RunInputs], block: int) -> list[float]:
        warm_up_runs = WARM_UP_RUNS if self._is_fast(point) else int(block == 0)
        executor = self._executor(point.model, point.device)
        names = self._workload.input_names(point.model)
        with busy_neighbours(*point.model.code, names, point.device, inputs):
            return timed_runs(executor, inputs, Block(block, self.block_s(point), warm_up_runs))

    def _compute(self, point: Point, inputs: Sequence[RunInputs]) -> list[tuple[float, float]]:
        """CPU seconds of some inputs of the sample: least back to back, after a pause."""
        executor = self._executor(point.model, point.device)
        chosen = spread_inputs(inputs)
        each_s = self.block_s(point) / len(chosen)
        return [
            (
                min(_cpu_s(executor, one, (1.0 - COLD_SHARE) * each_s)),
                median(_cpu_s(executor, one, COLD_SHARE * each_s, pause_s=PAUSE_S)),
            )
            for one in chosen
        ]

    def _is_fast(self, point: Point) -> bool:
        """True if warm-up runs are cheap: the first block's median is below `WARM_UP_BELOW_S`."""
        key = self.key(point, 0)
        return key in self._cache and median(self._cache[key]) < WARM_UP_BELOW_S

    def _executor(self, model: Model, device: Device = CPU) -> Executor:
        """The executor of a model on a device, loaded once."""
        if (model, device) not in self._executors:
            self._executors[model, device] = load(self._workload, model, device)
        return self._executors[model, device]

    def _trial(self, model: Model) -> Executor:
        """The executor that a model's answers to batches are tried with, loaded once: these may crash it."""
        if model not in self._trials:
            text = f"the time limit ended the trial of batches of {model.operator} {model.variant}"
            self._trials[model] = load_tried(self._workload, model, lambda: OutOfTimeError(text))
        return self._trials[model]

    def accepts_batches(self, model: Model) -> bool:
        """True if a trial run on two stacked requests gives outputs that can be split again, and mixes no requests."""
        sample = self._inputs[model.operator]
        rows = [sample[0], sample[-1]]
        pair = stack_requests(rows) if stack_requests(sample) is not None else None
        if pair is None or not self._splits(model, pair):
            return False
        difference = self._compare(Point(model, 1.0, 2), pair, rows)
        if difference is not None and difference.is_mixed:
            self.mixed[model] = difference
            return False
        return True

    def _splits(self, model: Model, pair: RunInputs) -> bool:
        """True if the outputs of two stacked requests can be split again."""
        executor = self._trial(model)
        if any(port.shape[:1] != (-1,) for port in executor.inputs):
            return False
        try:
            outputs = executor.run(pair).outputs
        except AgentError:
            return False
        own = [edge for edge in self._workload.edges if edge.upstream == model.operator]
        fanned_out = [model.sent(edge.output, outputs) for edge in own if edge.kind is EdgeKind.FAN_OUT]
        counters = {name: model.names.counter_of(name) for name in fanned_out}
        if not counters or not all(name in outputs for name in counters.values()):
            return all(array.shape[:1] == (2,) for array in self._sent(model, outputs))
        rows = [(outputs[name].shape[:1], outputs[counter or ""]) for name, counter in counters.items()]
        return all(counts.shape == (2,) and shape == (int(counts.sum()),) for shape, counts in rows)

    def _sent(self, model: Model, outputs: Mapping[str, Array]) -> list[Array]:
        """The outputs that are sent to other operators; of an operator that answers, the answer."""
        edges = [edge.output for edge in self._workload.edges if edge.upstream == model.operator]
        return [outputs[model.sent(name, outputs)] for name in dict.fromkeys(edges or [None])]

    def batch_difference(self, point: Point) -> BatchDifference | None:
        """How outputs of batches on the CPU differ from those of the same requests alone; None if by rounding at most.

        Compares batches of the sample inputs for about as long as a batch size is measured, and one at least.
        """
        sample, size = self._inputs[point.model.operator], point.batch
        worst: BatchDifference | None = None
        ends = time.perf_counter() + BLOCKS * self.block_s(point)
        for number, batch in enumerate(batched(sample, size)):
            rows = [sample[(number * size + offset) % len(sample)] for offset in range(size)]
            found = self._compare(point, batch, rows)
            worst = max((one for one in (worst, found) if one is not None), key=_severity, default=None)
            if time.perf_counter() >= ends:
                break
        return worst

    def _compare(self, point: Point, batch: RunInputs, rows: Sequence[Inputs]) -> BatchDifference | None:
        """`batch_difference` of one batch and its rows: of its outputs, one that is mixed goes before all others."""
        return max(self._differences(point, batch, rows), key=_severity, default=None)

    def _differences(self, point: Point, batch: RunInputs, rows: Sequence[Inputs]) -> Iterator[BatchDifference]:
        """The difference of each sent output of one batch, where it is more than rounding."""
        model, executor = point.model, self._trial(point.model)
        try:
            together = self._sent(model, executor.run(batch).outputs)
            alone = [self._sent(model, executor.run(row).outputs) for row in rows]
        except AgentError as error:
            raise self._refusal(model, executor, error) from error
        for stacked, *single in zip(together, *alone, strict=True):
            expected = np.concatenate(single)
            if stacked.shape != expected.shape or expected.dtype.kind not in "biuf" or not expected.size:
                continue
            found, values = stacked.astype(np.float64), expected.astype(np.float64)
            difference = float(np.nan_to_num(np.abs(found - values)).max())
            largest = float(np.nan_to_num(np.abs(values)).max())
            tolerance = 0.0
            if expected.dtype.kind == "f":
                tolerance = max(SAME_OUTPUT, ROUNDING_STEPS * float(np.finfo(expected.dtype).eps)) * largest
            if difference > tolerance:
                yield BatchDifference(point.batch, difference, largest, expected.dtype.kind == "f")

    def result(self, point: Point) -> Latency:
        """The latency of a point, over all its blocks."""
        blocks = [self._cache[self.key(point, block)] for block in range(BLOCKS)]
        if point.emulated:
            medians = [median(_emulated_s(np.array(block), point.speed)) for block in blocks]
            samples = _emulated_s(np.min(blocks, axis=0), point.speed)
        else:
            medians = [median(block) for block in blocks]
            samples = np.array([sample for block in blocks for sample in block])
        p50, p90, p99 = (float(value) for value in np.quantile(samples, (0.5, 0.9, 0.99)))
        low, high = np.quantile(medians, (0.25, 0.75))
        return Latency(float(samples.mean()), p50, p90, p99, float(high - low) / median(medians))


def spread_inputs(sample: Sequence[RunInputs]) -> list[RunInputs]:
    """A few inputs, evenly spread over the sample; if their shapes differ, more, evenly spread over their sizes."""
    sizes = [sum(array.nbytes for array in _arrays(inputs)) for inputs in sample]
    shapes = {tuple(array.shape for array in _arrays(inputs)) for inputs in sample}
    if len(shapes) == 1:
        return list(sample[:: max(1, len(sample) // COMPUTE_INPUTS)][:COMPUTE_INPUTS])
    order = sorted(range(len(sample)), key=sizes.__getitem__)
    count = min(VARIED_INPUTS, len(sample))
    return [sample[order[(2 * place + 1) * len(sample) // (2 * count)]] for place in range(count)]


def _arrays(inputs: RunInputs) -> list[Array]:
    return [array for value in inputs for array in arrays_of(value)]


def _cpu_s(executor: Executor, inputs: RunInputs, seconds: float, *, pause_s: float = 0.0) -> list[float]:
    """CPU seconds of each of many runs, which take about `seconds` in all; `pause_s`: pause before each run.

    Of a slow model it is one run, as its caches are as cold in every run, and a block must end.
    """
    ends, warm_up, taken = math.inf, WARM_UP_RUNS, list[float]()
    while warm_up or len(taken) < COMPUTE_RUNS or time.perf_counter() < ends:
        time.sleep(pause_s)
        began = time.thread_time()
        executor.run(inputs)
        taken.append(time.thread_time() - began)
        if warm_up and taken[-1] > WARM_UP_BELOW_S:
            break
        if warm_up:
            warm_up -= 1
            taken.clear()
            ends = time.perf_counter() + seconds
    return taken


def _emulated_s(times_s: Array, speed: float) -> Array:
    """Seconds on a device of this speed, by input. `times_s`: rows of compute time here and time after a pause here."""
    compute_s, cold_s = times_s[:, 0], times_s[:, 1]
    total_s: Array = compute_s / speed + np.maximum(0.0, cold_s - compute_s)
    return total_s
