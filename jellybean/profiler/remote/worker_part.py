"""The part of a profile that one worker measures: variant by variant, each block kept as soon as it arrives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jellybean.profiler.cache import Cache, key_of, key_of_device
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.latency import BLOCKS, Latency, LatencyMeter, Point
from jellybean.profiler.remote.worker_agent import Content, WorkerAgent, WorkerLostError
from jellybean.profiler.workload import Inputs, Model, Workload
from jellybean_agent import Device, ModelMemory, data_path, hash_model, sample_file
from jellybean_protos.agent.v1 import agent_pb2

MAX_SAMPLE_BYTES = 256 * 2**20  # sample inputs of an operator that are sent; of larger ones the first
MEMORY_S = 0.6  # expected time to measure a variant's memory
_RETRIES, _RETRY_S = 2, 1.0  # after a connection ended: its lifetime was over, or the agent took another plan
Advance = Callable[[str, float], None]  # label of what is measured, seconds done


@dataclass
class WorkerPart:
    """What one worker measures, and what it has measured. `meter`, `cache`: with the keys of this worker.

    `served`: requests that it served meanwhile.
    """

    agent: WorkerAgent
    workload: Workload
    inputs: Mapping[str, Sequence[Inputs]]
    points: Sequence[Point]
    meter: LatencyMeter
    cache: Cache
    latency: dict[Point, Latency] = field(default_factory=dict)
    memory: dict[tuple[Model, Device], ModelMemory] = field(default_factory=dict)
    served: int = 0

    @property
    def models(self) -> dict[Model, list[Point]]:
        """The models to measure, each with its points."""
        found: dict[Model, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.model, []).append(point)
        return found

    @property
    def expected_s(self) -> float:
        """Expected duration in seconds."""
        return sum(BLOCKS * self.meter.expected_s(point) for point in self.points) + MEMORY_S * len(self.models)

    def measured(self, advance: Advance) -> Iterator[Model]:
        """Measure; yields each model once it has been measured. ProfileError if the worker is lost or refuses."""
        for model, points in self.models.items():
            self._measure(model, points, advance)
            for point in points:
                self.latency[point] = self.meter.result(point)
            self.memory[model, points[0].device] = ModelMemory(*self.cache[self._memory_key(model, points)])
            yield model

    def _measure(self, model: Model, points: Sequence[Point], advance: Advance) -> None:
        """Measure what is not in the cache; a connection that ends is made again."""
        for left in reversed(range(_RETRIES + 1)):
            try:
                self._ask(model, points, advance)
            except WorkerLostError:
                if not left:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def _ask(self, model: Model, points: Sequence[Point], advance: Advance) -> None:
        by_batch, memory_key = {point.batch: point for point in points}, self._memory_key(model, points)
        blocks = {
            point.batch: [block for block in range(BLOCKS) if self.meter.key(point, block) not in self.cache]
            for point in points
        }
        wants_memory = memory_key not in self.cache
        label = f"{self.agent.worker.name}: {model.operator} {model.variant}"
        if not any(blocks.values()) and not wants_memory:
            return
        advance(label, 0.0)
        subject, contents = self._subject(model, points)
        subject.memory = wants_memory
        for point in points:
            seconds = self.meter.block_s(point)
            subject.points.add(batch=point.batch, seconds=seconds, blocks=blocks[point.batch])
        for response in self.agent.measure(subject, contents):
            self.served = max(self.served, response.served)
            if response.WhichOneof("part") == "memory_bytes":
                device = response.device_memory_bytes if response.HasField("device_memory_bytes") else None
                self.cache.put(memory_key, ModelMemory(response.memory_bytes, device))
                advance(label, MEMORY_S)
            else:
                point = by_batch[response.timed.batch]
                self.cache.put(self.meter.key(point, response.timed.block), list(response.timed.seconds))
                advance(label, self.meter.block_s(point))

    def _memory_key(self, model: Model, points: Sequence[Point]) -> str:
        settings = {"model": model.sha256, "operator": model.operator, "sizes": sorted(p.batch for p in points)}
        return key_of(kind="memories", **settings, work=self.workload.digest, **key_of_device(points[0].device))

    def _subject(self, model: Model, points: Sequence[Point]) -> tuple[agent_pb2.Subject, dict[str, Content]]:
        """What the worker is to measure, and the files that it may lack, by sha256."""
        device = points[0].device
        sample = sample_file(_limited(self.inputs[model.operator]))
        digest = hashlib.sha256(sample).hexdigest()
        subject = agent_pb2.Subject(
            name=f"operator {model.operator}, variant {model.variant}",
            sha256=model.code[1],
            device=device.name,
            device_options=dict(device.options),
            sample=agent_pb2.ContentFile(sha256=digest, size=len(sample)),
        )
        for upstream, port in self.workload.input_names(model).items():
            subject.inputs.add(upstream=upstream, port=port)
        contents: dict[str, Content] = {digest: sample}
        if model.step is not None:
            subject.function, subject.arguments = model.step.function, model.step.arguments
            return subject, contents
        found, files = hash_model(model.path)
        if found != model.sha256:
            raise ProfileError(f"{subject.name}: {model.path} was altered while it was profiled")
        for file in files:
            subject.files.add(name=file.name, sha256=file.sha256, size=file.size_bytes)
            contents[file.sha256] = data_path(model.path, file.name) if file.name else model.path
        return subject, contents


def _limited(sample: Sequence[Inputs]) -> list[Inputs]:
    """The first of a sample that have `MAX_SAMPLE_BYTES` together, and at least one."""
    kept: list[Inputs] = []
    left_bytes = MAX_SAMPLE_BYTES
    for inputs in sample:
        left_bytes -= sum(a.nbytes for value in inputs for a in (value if isinstance(value, tuple) else (value,)))
        if kept and left_bytes < 0:
            break
        kept.append(inputs)
    return kept
