"""The workload to profile: the project's operators with their models, and held-out requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from jellybean.profiler.errors import ProfileError
from jellybean_agent import (
    CPU,
    GATEWAY,
    Device,
    OperatorCode,
    OperatorInput,
    OperatorWiring,
    PortNames,
    PythonStep,
    RunInput,
    state_inputs,
)
from jellybean_solver import Edge, EdgeKind

Array = npt.NDArray[Any]
Selection = Mapping[str, str]
Inputs = tuple[OperatorInput, ...]  # of one request, in the order of the operator's edges
RunInputs = tuple[RunInput, ...]  # of one run


@dataclass(frozen=True)
class Model:
    """One variant: a model file, or a Python function (`step`). `sha256`: its content hash, as in the plan.

    `names`: the variant's own names of its inputs and outputs.
    """

    operator: str
    variant: str
    path: Path
    sha256: str
    step: PythonStep | None = None
    module_sha256: str = ""
    names: PortNames = field(default_factory=PortNames)

    @property
    def code(self) -> tuple[OperatorCode, str]:
        """The code that an executor loads, and its sha256."""
        return (self.path, self.sha256) if self.step is None else (self.step, self.module_sha256)

    def sent(self, edge_output: str | None, outputs: Mapping[str, Array]) -> str:
        """Name of the model's output for an edge with this `output` (None: it names none), among `outputs`."""
        return self.names.output_of(edge_output) or next(iter(outputs))


@dataclass(frozen=True)
class Step:
    """One operator: its input edges, and its variants in the document's order."""

    name: str
    inputs: tuple[Edge, ...]
    models: tuple[Model, ...]
    state: Mapping[str, str] = field(default_factory=dict)  # model input -> output that a stream's next chunk takes

    @property
    def upstreams(self) -> tuple[str, ...]:
        return tuple(edge.upstream for edge in self.inputs)

    def model(self, variant: str) -> Model:
        return next(model for model in self.models if model.variant == variant)


@dataclass(frozen=True)
class Workload:
    """Operators (`steps`) in topological order, held-out requests, and their labels if any.

    Requests are one array per source; row i belongs to request i.
    `speeds`: worker type -> speed relative to this machine. `stages`: heads and tails of cut models.
    `devices`: worker type -> device; the CPU where it is not given. `references`: source -> file#array of its requests.
    """

    steps: tuple[Step, ...]
    requests: Mapping[str, Array]
    labels: Array | None
    metric: str
    speeds: Mapping[str, float]
    stages: tuple[Step, ...] = ()
    devices: Mapping[str, Device] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    stream_ids: Array | None = None  # of the requests, if an operator has a state
    labels_of: str | None = None  # the operator whose answers the labels are for; None: the only one that answers

    def sources_of(self, operator: str) -> tuple[str, ...]:
        """The sources whose data reach an operator or a stage of it."""
        edges = [edge for name in self.ancestors.get(operator, ()) for edge in self.step_by_name[name].inputs]
        names = [edge.upstream for edge in edges] or self.requests
        return tuple(dict.fromkeys(name for name in names if name in self.requests))

    def input_names(self, model: Model) -> dict[str, str]:
        """Upstream -> input of the model, the inputs that take its state last."""
        step = self.step_by_name[model.operator]
        return {**model.names.input_by_upstream(step.upstreams), **state_inputs(step.state)}

    @cached_property
    def stateful(self) -> tuple[str, ...]:
        """Operators with a state."""
        return tuple(step.name for step in self.steps if step.state)

    @cached_property
    def request_before(self) -> Mapping[int, int]:
        """Request -> the one before it in its stream; none for the first of a stream, and without streams."""
        last: dict[Any, int] = {}
        before: dict[int, int] = {}
        for request, stream in enumerate([] if self.stream_ids is None else self.stream_ids.tolist()):
            if stream in last:
                before[request] = last[stream]
            last[stream] = request
        return before

    def device_of(self, worker_type: str) -> Device:
        """The device on which a worker type's models run."""
        return self.devices.get(worker_type, CPU)

    @cached_property
    def step_by_name(self) -> Mapping[str, Step]:
        return {step.name: step for step in (*self.steps, *self.stages)}

    @property
    def request_count(self) -> int:
        return min(len(rows) for rows in self.requests.values())

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge for step in self.steps for edge in step.inputs)

    @cached_property
    def wiring(self) -> Mapping[str, OperatorWiring]:
        """Operator -> its edges in the form that the agent's `Brain` takes, with all operators on one worker."""
        out: dict[str, list[tuple[str, EdgeKind]]] = {step.name: [] for step in self.steps}
        for edge in self.edges:
            if edge.upstream in out:
                out[edge.upstream].append((edge.downstream, edge.kind))
        return {
            step.name: OperatorWiring(
                tuple((edge.upstream, edge.kind.value) for edge in step.inputs),
                tuple((downstream, kind.value) for downstream, kind in out[step.name]),
            )
            for step in self.steps
        }

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        return tuple(name for name, wires in self.wiring.items() if not wires.outputs)

    @property
    def labelled_sink(self) -> str:
        """The sink whose answers the labels are for. ProfileError if several answer and none is named."""
        if self.labels_of is None and len(self.sinks) > 1:
            raise ProfileError(
                f"{len(self.sinks)} operators answer ({', '.join(self.sinks)}), and labels are for one of them; write "
                "its name as `labels_of:` into workflow.yaml"
            )
        return self.labels_of or self.sinks[0]

    @cached_property
    def ancestors(self) -> Mapping[str, tuple[str, ...]]:
        """Operator -> all operators that its output depends on, itself included, in topological order."""
        found: dict[str, set[str]] = {}
        for step in self.steps:
            found[step.name] = {step.name}.union(*(found.get(upstream, set()) for upstream in step.upstreams))
        order = [step.name for step in self.steps]
        return {name: tuple(one for one in order if one in above) for name, above in found.items()}

    def downstreams(self, operator: str) -> tuple[str, ...]:
        """Names of the operators that read this operator's output; for a sink the gateway's name."""
        return tuple(downstream for downstream, _ in self.wiring[operator].outputs) or (GATEWAY,)

    @cached_property
    def digest(self) -> str:
        """Content hash of the edges, the variants' names of tensors, held-out requests, labels and metric."""
        wires = [(edge.upstream, edge.downstream, edge.kind.value, edge.output) for edge in self.edges]
        names = [(model.operator, model.variant, repr(model.names)) for step in self.steps for model in step.models]
        found = hashlib.sha256(repr((wires, self.metric, names)).encode())
        arrays = [*(self.requests[name] for name in sorted(self.requests)), self.labels]
        if len(self.sinks) > 1 and self.labels is not None:
            found.update(repr(self.labels_of).encode())
        if self.stateful:
            found.update(repr([(step.name, dict(step.state)) for step in self.steps]).encode())
            arrays.append(self.stream_ids)
        for array in arrays:
            if array is not None:
                found.update(repr((array.dtype, array.shape)).encode())
                found.update(array.tobytes())
        return found.hexdigest()
