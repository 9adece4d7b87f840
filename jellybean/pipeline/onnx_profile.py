"""Profiles an ONNX model by layer: forward time, activation bytes, parameter bytes; selects the cuts to offer.

Node times are measured by onnxruntime's profiler without fusion, so that every node is visible, and scaled to sum to
the time of the whole model as served (fused). An ONNX graph has no backward pass: its time is 0.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort

from jellybean.errors import InputError
from jellybean.pipeline.onnx_graph import Feed, GraphError, OnnxGraph, node_session
from jellybean.pipeline.onnx_split import LayeredModel, LegalCut, find_layers, layer_edges, why_not_servable
from jellybean.tensor_files import read_archived
from jellybean_solver.pipeline import Layer, LayerGraph

MIN_RUNS = 5
WARM_UP_RUNS = 3


@dataclass(frozen=True)
class OnnxProfile:
    """A model's layers with their forward times. `forward_s`: seconds of each layer for one request."""

    layers: LayeredModel
    forward_s: tuple[float, ...]

    @property
    def whole_s(self) -> float:
        return sum(self.forward_s)

    def share(self, cut: LegalCut) -> float:
        """Fraction of the model's time that the head of a cut takes."""
        return sum(self.forward_s[layer] for layer in cut.layers) / self.whole_s

    def why_not(self, cut: LegalCut) -> str:
        """Why a cut cannot be served; empty when it can."""
        return why_not_servable(self.layers.graph, self.layers.observed, cut)

    def layer_graph(self) -> LayerGraph:
        """The model as a `LayerGraph`, the input of the partitioner."""
        model, graph = self.layers, self.layers.graph
        layers = []
        for index, nodes in enumerate(model.groups):
            outside = {name for node in graph.live if node not in nodes for name in graph.reads[node]}
            kept = outside | set(graph.outputs)
            sent = [name for node in nodes for name in graph.writes[node] if name in kept and name in model.observed]
            sent_bytes = float(sum(model.observed[name].nbytes for name in sent))
            weights = float(graph.parameter_bytes(nodes))
            layers.append(Layer(model.name(index), self.forward_s[index], 0.0, sent_bytes, weights))
        return LayerGraph(tuple(layers), tuple(sorted(layer_edges(graph, model.groups))))

    def tied(self) -> dict[str, tuple[str, ...]]:
        """Name of a weight that several layers read -> names of those layers; vectors and scalars are left out."""
        graph = self.layers.graph
        users: dict[str, list[str]] = {}
        for layer, nodes in enumerate(self.layers.groups):
            for name in dict.fromkeys(name for node in graph.needed(nodes) for name in graph.reads[node]):
                if name in graph.weights and sum(side > 1 for side in graph.weights[name].dims) > 1:
                    users.setdefault(name, []).append(self.layers.name(layer))
        return {name: tuple(layers) for name, layers in users.items() if len(layers) > 1}


def profile_onnx(graph: OnnxGraph, feeds: Sequence[Feed], *, seconds: float = 1.0) -> OnnxProfile:
    """Profile a model on `feeds` (one request each) for about `seconds` seconds. GraphError if the model fails."""
    layers = find_layers(graph, graph.observe(feeds))
    by_node = node_seconds(graph, feeds, seconds / 2)
    whole_s = _whole_seconds(graph, feeds, seconds / 2)
    raw = [sum(by_node.get(index, 0.0) for index in nodes) for nodes in layers.groups]
    scale = whole_s / sum(raw) if sum(raw) > 0 else 0.0
    return OnnxProfile(layers, tuple(total * scale for total in raw))


def random_request(graph: OnnxGraph, seed: int = 0) -> Feed:
    """One request of random numbers, with zeros for integer inputs; dynamic dimensions have size 1."""
    rng = np.random.default_rng(seed)
    feed = {}
    for value in graph.proto.graph.input:
        if value.name not in graph.inputs:
            continue
        kind = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [max(1, dim.dim_value) for dim in kind.shape.dim]
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
        feed[value.name] = drawn.astype(dtype)
    return feed


def offered_cuts(profile: OnnxProfile, most: int) -> tuple[LegalCut, ...]:
    """At most `most` servable cuts, ordered by the head's share of the model's time.

    The model's time is divided into `most` equal intervals; each interval gives its cut with the fewest crossing bytes.
    So the cuts suit fast and slow devices, and among cuts with similar heads the one with the least traffic is chosen.
    """
    best: dict[int, LegalCut] = {}
    for cut in profile.layers.cuts:
        if profile.why_not(cut):
            continue
        part = min(most - 1, int(profile.share(cut) * most))
        if part not in best or _preference(profile, cut) < _preference(profile, best[part]):
            best[part] = cut
    return tuple(best[part] for part in sorted(best))


def _preference(profile: OnnxProfile, cut: LegalCut) -> tuple[float, ...]:
    return (cut.nbytes, profile.share(cut), *cut.layers)


def node_seconds(graph: OnnxGraph, feeds: Sequence[Feed], seconds: float) -> Mapping[int, float]:
    """Node index -> mean seconds of its kernel per run; `seconds`: about how long to measure."""
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    for index, node in enumerate(proto.graph.node):
        node.name = f"jellybean-{index}-"
    with tempfile.TemporaryDirectory(prefix="jellybean-") as folder:
        session = node_session(proto, profile_prefix=str(Path(folder) / "nodes"))
        runs = _timed(session, feeds, seconds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    seconds_of: dict[int, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if name.startswith("jellybean-") and name.endswith("_kernel_time"):
            seconds_of.setdefault(int(name.split("-")[1]), []).append(1e-6 * event["dur"])
    kept = max(1, len(runs))
    return {index: sum(times[-kept:]) / len(times[-kept:]) for index, times in seconds_of.items()}


def _whole_seconds(graph: OnnxGraph, feeds: Sequence[Feed], seconds: float) -> float:
    """Median CPU seconds of one request through the model as it is served: with fusion, on one thread."""
    return median(_timed(node_session(graph.proto, fused=True), feeds, seconds))


def _timed(session: ort.InferenceSession, feeds: Sequence[Feed], seconds: float) -> list[float]:
    """CPU seconds of each run, after warm-up runs; the runs take about `seconds` seconds together."""
    for index in range(WARM_UP_RUNS):
        session.run(None, dict(feeds[index % len(feeds)]))
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    while len(taken) < MIN_RUNS or time.perf_counter() < ends:
        began = time.thread_time()
        session.run(None, dict(feeds[len(taken) % len(feeds)]))
        taken.append(time.thread_time() - began)
    return taken


def read_requests(path: Path, graph: OnnxGraph, most: int = 8) -> list[Feed]:
    """Up to `most` requests from a .npz file that has one array per model input and one row per request."""
    try:
        arrays = {name: read_archived(path, name) for name in graph.inputs}
    except InputError as error:
        raise GraphError(f"the model's inputs ({', '.join(graph.inputs)}): {error}") from error
    rows = min(len(array) for array in arrays.values())
    if rows == 0:
        raise GraphError(f"{path} has no rows")
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(min(rows, most))]
