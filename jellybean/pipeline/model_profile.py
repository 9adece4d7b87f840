"""`jellybean pipeline profile`: costs of a model's layers, from an ONNX file or a torch module, and its legal cuts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from jellybean.display import formats
from jellybean.errors import JellyBeanError
from jellybean.pipeline.onnx_graph import OnnxGraph
from jellybean.pipeline.onnx_profile import OnnxProfile, profile_onnx, random_request, read_requests
from jellybean.pipeline.user_functions import load_function
from jellybean_solver.pipeline import LayerGraph, PartitionSettings, enumerate_cuts

if TYPE_CHECKING:
    from jellybean.pipeline.torch_profile import TorchProfile

_SECONDS_PER_RUN = 0.1


@dataclass(frozen=True, slots=True)
class ProfiledCut:
    """A legal cut of a model in two. `layers`: indices of the layers before it; `share`: their share of the time.

    `crossing_bytes`: bytes of the tensors that cross it, for one request. `why_not`: why the cut cannot be served,
    empty if it can.
    """

    layers: tuple[int, ...]
    share: float
    crossing_bytes: float
    why_not: str | None = None  # None: not checked (torch modules)


@dataclass(frozen=True)
class ModelProfile:
    """Costs of a model's layers, and its legal cuts.

    `complete`: True if `cuts` has all legal cuts. `tied`: name of a weight -> names of the layers that share it.
    """

    graph: LayerGraph
    cuts: tuple[ProfiledCut, ...]
    complete: bool
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON values, in seconds and bytes."""
        layers = [
            {
                "name": layer.name,
                "forward_s": layer.forward_s,
                "backward_s": layer.backward_s,
                "activation_bytes": layer.activation_bytes,
                "parameter_bytes": layer.parameter_bytes,
            }
            for layer in self.graph.layers
        ]
        cuts = [
            {
                "layers": list(cut.layers),
                "share": cut.share,
                "crossing_bytes": cut.crossing_bytes,
                "why_not": cut.why_not,
            }
            for cut in self.cuts
        ]
        edges = [list(edge) for edge in self.graph.edges]
        tied = {name: list(layers) for name, layers in self.tied.items()}
        return {"layers": layers, "edges": edges, "cuts": cuts, "complete": self.complete, "tied": tied}

    def to_text(self) -> str:
        """The profile as text in PipeDream's format, which `jellybean pipeline plan` reads."""
        lines = [
            f"node{index} -- {layer.name} -- forward_compute_time={1e3 * layer.forward_s:.6f}, "
            f"backward_compute_time={1e3 * layer.backward_s:.6f}, activation_size={layer.activation_bytes:.1f}, "
            f"parameter_size={layer.parameter_bytes:.1f}"
            for index, layer in enumerate(self.graph.layers)
        ]
        lines += [f"\tnode{up} -- node{down}" for up, down in self.graph.edges]
        return "\n".join(lines) + "\n"

    def table(self) -> Table:
        """Table of the layers in order, each with the bytes that would cross a cut directly after it."""

        total_s = sum(layer.compute_s for layer in self.graph.layers)
        table = Table(
            "layer", title=f"{len(self.graph.layers)} layers, {formats.duration(total_s)}", title_justify="left"
        )
        backward = any(layer.backward_s for layer in self.graph.layers)
        passes = ("forward", "backward") if backward else ("forward",)
        for heading in (*passes, "activations", "parameters", "done", "cut after it"):
            table.add_column(heading, justify="right")
        done_s, prefix = 0.0, 0
        last = len(self.graph.layers) - 1
        for index, layer in enumerate(self.graph.layers):
            done_s, prefix = done_s + layer.compute_s, prefix | 1 << index
            table.add_row(
                f"{index + 1} {layer.name}",
                *(f"{1e3 * seconds:.3f} ms" for seconds in (layer.forward_s, layer.backward_s)[: len(passes)]),
                formats.size(layer.activation_bytes),
                formats.size(layer.parameter_bytes),
                f"{done_s / total_s:.0%}" if total_s else "",
                "" if index == last else self._across(tuple(range(index + 1)), prefix),
            )
        return table

    def _across(self, layers: tuple[int, ...], prefix: int) -> str:
        known = next((cut for cut in self.cuts if cut.layers == layers), None)
        sent = known.crossing_bytes if known is not None else self.graph.crossing_bytes(prefix)
        return formats.size(sent) + (" *" if known is not None and known.why_not else "")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes below the table: number of cuts, why some cannot be served, tied weights."""
        refused = dict.fromkeys(cut.why_not for cut in self.cuts if cut.why_not)
        served = sum(cut.why_not == "" for cut in self.cuts)
        notes = [f"{'' if self.complete else 'more than '}{len(self.cuts)} legal cuts"]
        if any(cut.why_not is not None for cut in self.cuts):
            notes[0] += f", {served} of which can be served"
        notes += [f"* cannot be served: {reason}" for reason in list(refused)[:3]]
        notes += [f"{name} is shared by {', '.join(layers)}" for name, layers in self.tied.items()]
        return tuple(notes)


def profile_model(model: str, *, inputs: Path | None = None, seconds: float = 1.0) -> ModelProfile:
    """Profile `model`: an ONNX file, or FILE.py:FUNCTION (PACKAGE.MODULE:FUNCTION) that returns (module, inputs).

    `inputs`: a .npz file of requests for an ONNX model, one array per input; random requests by default. `seconds`:
    time to measure an ONNX model.
    """
    place, colon, function = model.rpartition(":")
    if colon and not Path(model).exists():
        return _of_torch(model, load_function(place, function)(), seconds)
    graph = OnnxGraph.load(Path(model))
    feeds = read_requests(inputs, graph) if inputs is not None else [random_request(graph, seed) for seed in range(2)]
    return _of_onnx(profile_onnx(graph, feeds, seconds=seconds))


def _of_onnx(profile: OnnxProfile) -> ModelProfile:
    graph = profile.layer_graph()
    cuts = [
        ProfiledCut(cut.layers, profile.share(cut), cut.nbytes, profile.why_not(cut)) for cut in profile.layers.cuts
    ]
    return ModelProfile(graph, tuple(cuts), profile.layers.complete, profile.tied())


def _of_torch(function: str, made: Any, seconds: float) -> ModelProfile:
    import torch
    from torch import nn

    from jellybean.pipeline.torch_profile import profile_module

    pair = made if isinstance(made, tuple) and len(made) == 2 else (None, None)
    module, inputs = pair
    if not isinstance(module, nn.Module) or not isinstance(inputs, tuple | list | dict):
        raise JellyBeanError(
            f"{function} returned {_type_names(made)}; it must return (module, inputs): a torch.nn.Module and a tuple "
            "or a dict of its arguments, one micro-batch"
        )
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    torch.set_num_threads(1)  # as ONNX models are measured
    return of_torch_profile(profile_module(module, args, kwargs, runs=runs_in(seconds)))


def runs_in(seconds: float) -> int:
    """Number of timed runs of each operation for about so many seconds of a small model."""
    from jellybean.pipeline.torch_profile import RUNS

    return max(RUNS, round(seconds / _SECONDS_PER_RUN))


def of_torch_profile(found: TorchProfile) -> ModelProfile:
    """The profile of a torch module with its legal cuts."""
    bits, complete = enumerate_cuts(found.graph, PartitionSettings().max_cuts)
    whole, total = (1 << len(found.graph.layers)) - 1, sum(layer.compute_s for layer in found.graph.layers)
    cuts = []
    for cut in bits:
        if cut not in (0, whole):
            layers = tuple(index for index in range(len(found.graph.layers)) if cut >> index & 1)
            share = sum(found.graph.layers[index].compute_s for index in layers) / total
            cuts.append(ProfiledCut(layers, share, found.graph.crossing_bytes(cut)))
    return ModelProfile(found.graph, tuple(cuts), complete, found.tied)


def _type_names(made: Any) -> str:
    if isinstance(made, tuple) and made:
        return f"({', '.join(type(part).__name__ for part in made)})"
    return "nothing" if made is None else type(made).__name__
