"""Cuts models in two for profiling: chooses cuts, writes head and tail as model files, checks them against the model.

Layer times are measured first, so that the cuts are spread over the model's running time. Heads and tails are then
profiled like any other model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from jellybean.documents import Project
from jellybean.documents.checks.tensors import read_model
from jellybean.documents.planning_problem.forms import stage_names
from jellybean.folders import require_no_link, write_file
from jellybean.pipeline.onnx_graph import Feed, OnnxGraph
from jellybean.pipeline.onnx_profile import OnnxProfile, node_seconds, offered_cuts
from jellybean.pipeline.onnx_split import LegalCut, find_layers, split
from jellybean.profiler.cache import Cache, key_of
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.survey import Survey
from jellybean.profiler.workload import Inputs, Model, Step, Workload
from jellybean_agent import AgentError, Executor
from jellybean_solver import Edge, EdgeKind, head_name

FOLDER = Path("models") / "stages"
LAYERS_S = 2.0  # time to measure the layers of one model
FEEDS = 8  # requests used to find cuts and measure layers
TOLERANCE = 1e-5  # largest difference between outputs of stages and whole model, relative to the largest output value


@dataclass(frozen=True)
class CutModel:
    """One cut of a model after `layers` of its `of` layers; both stages are model files.

    `crossing_bytes`: size of the message from head to tail. `inputs`: upstreams of the operator that the head reads.
    `steps`: head and tail as operators of the workload.
    """

    whole: Model
    layers: int
    of: int
    crossing_bytes: float
    inputs: tuple[str, ...]
    steps: tuple[Step, Step]
    folder: Path  # the project folder

    @property
    def operator(self) -> str:
        return self.whole.operator

    @property
    def head(self) -> Model:
        return self.steps[0].models[0]

    @property
    def tail(self) -> Model:
        return self.steps[1].models[0]


@dataclass(frozen=True)
class CutModels:
    """The cuts of the models that were cut in this run.

    `workload` and `survey` include the stages of the cuts. `notes`: why a model has no cut.
    """

    workload: Workload
    survey: Survey
    models: tuple[Model, ...]
    cuts: tuple[CutModel, ...]
    notes: tuple[str, ...]


def allowed_cuts(project: Project) -> dict[tuple[str, str], int]:
    """(operator, variant) -> maximum number of cuts that the workflow allows."""
    operators = project.workflow.operators
    return {(name, variant): spec.cuts_of(variant) for name, spec in operators.items() for variant in spec.variants}


def cut_models(
    project: Project, workload: Workload, survey: Survey, cache: Cache, wanted: Collection[tuple[str, str]]
) -> CutModels:
    """Cut the models of the (operator, variant) in `wanted`, as often as the workflow allows.

    ProfileError if a model cannot be split into layers.
    """
    most = allowed_cuts(project)
    inputs = dict(survey.inputs)
    models: list[Model] = []
    found: list[CutModel] = []
    notes: list[str] = []
    for step in workload.steps:
        for model in step.models:
            if (model.operator, model.variant) in wanted:
                models.append(model)
                cutter = _Cutter(project.directory, step, model, survey.inputs[step.name], workload.digest)
                own = cutter.cuts(most[model.operator, model.variant], cache, inputs)
                found += own
                if not own:
                    notes.append(f"{model.operator} {model.variant} stays whole: {cutter.no_cut_reason()}")
    stages = tuple(stage for cut in found for stage in cut.steps)
    return CutModels(
        replace(workload, stages=stages), replace(survey, inputs=inputs), tuple(models), tuple(found), tuple(notes)
    )


class _Cutter:
    """Cuts one model. `sample`: inputs of the model. `work`: digest of the workload, part of the cache keys."""

    def __init__(self, directory: Path, step: Step, model: Model, sample: Sequence[Inputs], work: str) -> None:
        self.directory, self.step, self.model, self.sample, self.work = directory, step, model, sample, work
        self.graph = OnnxGraph.load(model.path)
        ports = replace(read_model(model.path), names=model.names)
        self.ports = [ports.input_for(edge.upstream, index).name for index, edge in enumerate(step.inputs)]
        self.gathers = any(edge.kind is EdgeKind.GATHER for edge in step.inputs)
        self.feeds = [self._feed(one) for one in sample[:FEEDS] if self._full(one)]
        if not self.feeds:
            raise ProfileError(f"operator {step.name}: every held-out request brings it no data, so it cannot be cut")
        self.layers = find_layers(self.graph, self.graph.observe(self.feeds, pairs=not self.gathers))
        self.refused: list[str] = []

    @staticmethod
    def _full(inputs: Inputs) -> bool:
        return all(len(value) for value in inputs)

    def _feed(self, inputs: Inputs) -> Feed:
        arrays = [np.concatenate(value) if isinstance(value, tuple) else value for value in inputs]
        return dict(zip(self.ports, arrays, strict=True))

    def cuts(self, most: int, cache: Cache, inputs: dict[str, list[Inputs]]) -> list[CutModel]:
        """Up to `most` usable cuts. Adds sample inputs of their stages to `inputs`, by the stage's operator name."""
        profile = self._profile(cache)
        self.refused = [profile.why_not(cut) for cut in self.layers.cuts]
        found: list[CutModel] = []
        for cut in offered_cuts(profile, most):
            one = self._written(cut, len(found) + 1)
            head, tail = self._stage_inputs(one)
            if (why := self._differs(one, tail)) is not None:
                self.refused.append(why)
                continue
            inputs[one.steps[0].name], inputs[one.steps[1].name] = head, tail
            found.append(one)
        return found

    def no_cut_reason(self) -> str:
        """Why the model has no usable cut."""
        reasons = dict.fromkeys(why for why in self.refused if why)
        return f"no cut can be served ({'; '.join(list(reasons)[:3])})" if reasons else "it has one layer"

    def _profile(self, cache: Cache) -> OnnxProfile:
        key = key_of(kind="layers", model=self.model.sha256, work=self.work, seconds=LAYERS_S)
        if key not in cache:
            seconds = node_seconds(self.graph, self.feeds, LAYERS_S)
            cache.put(key, [sum(seconds.get(index, 0.0) for index in nodes) for nodes in self.layers.groups])
        return OnnxProfile(self.layers, tuple(cache[key]))

    def _written(self, cut: LegalCut, number: int) -> CutModel:
        """Write head and tail of a cut as model files. `number`: position among the model's cuts, part of the names."""
        step, model = self.step, self.model
        early = {name for index in cut.head for name in self.graph.reads[index]}
        feeds_head = {edge.upstream for edge, port in zip(step.inputs, self.ports, strict=True) if port in early}
        name = f"{step.name}.{model.variant}.{number}"
        protos = split(self.layers, cut, self.ports)
        head, tail = (
            replace(self._save(proto, f"{name}.{side}", f"{step.name} {model.variant} {number} {side}"), names=names)
            for proto, side, names in zip(protos, ("head", "tail"), stage_names(model.names, feeds_head), strict=True)
        )
        crossing = Edge(head_name(step.name), step.name)
        own = tuple(edge for edge in step.inputs if edge.upstream in feeds_head)
        rest = tuple(edge for edge in step.inputs if edge.upstream not in feeds_head)
        steps = (Step(head.operator, own, (head,)), Step(tail.operator, (*rest, crossing), (tail,)))
        of, inputs = len(self.layers.groups), tuple(edge.upstream for edge in own)
        return CutModel(model, len(cut.layers), of, float(cut.nbytes), inputs, steps, self.directory)

    def _save(self, proto: onnx.ModelProto, name: str, step: str) -> Model:
        content = proto.SerializeToString(deterministic=True)
        path = self.directory / FOLDER / f"{name}.onnx"
        require_no_link(path.parent, self.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content, self.directory)
        return Model(step, self.model.variant, path, hashlib.sha256(content).hexdigest())

    def _stage_inputs(self, cut: CutModel) -> tuple[list[Inputs], list[Inputs]]:
        """Inputs of the head and inputs of the tail, one each for every sample input of the whole model."""
        early = [index for index, edge in enumerate(self.step.inputs) if edge.upstream in cut.inputs]
        late = [index for index in range(len(self.step.inputs)) if index not in early]
        head = [tuple(inputs[index] for index in early) for inputs in self.sample]
        runs = self._runs(cut.steps[0], head)
        tail = [
            (*(inputs[index] for index in late), next(iter(run.values())))
            for inputs, run in zip(self.sample, runs, strict=True)
        ]
        return head, tail

    def _differs(self, cut: CutModel, inputs: Sequence[Inputs]) -> str | None:
        """How the outputs of the two stages differ from those of the whole model; None if equal within `TOLERANCE`."""
        whole = self._runs(Step(self.step.name, self.step.inputs, (self.model,)), self.sample)
        for one, two in zip(whole, self._runs(cut.steps[1], inputs), strict=True):
            for name, wanted in one.items():
                found = two[name]
                scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0))) if wanted.dtype.kind == "f" else 0.0
                same = found.shape == wanted.shape and np.allclose(found, wanted, rtol=0, atol=TOLERANCE * scale)
                if not same:
                    return f"cut after {cut.layers} of {cut.of} layers, output {name} is not the whole model's"
        return None

    def _runs(self, step: Step, inputs: Sequence[Inputs]) -> list[Mapping[str, np.ndarray]]:
        (model,) = step.models
        try:
            executor = Executor(model.path, model.sha256, model.names.input_by_upstream(step.upstreams))
            return [executor.run(one).outputs for one in inputs]
        except AgentError as error:
            raise ProfileError(f"operator {self.step.name}, {model.path.name}: {error}") from error
