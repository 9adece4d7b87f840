"""Check that models fit each other along the edges, with the names that each variant gives its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.checks.tensors import (
    ModelSignature,
    Port,
    Tensor,
    answers_differ,
    batch_problem,
    half_precision_hint,
    misfits,
    step_between,
)
from jellybean.documents.flow import Flow
from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import DocPath
from jellybean.quantities import did_you_mean, quoted
from jellybean_agent import no_served_output, unserved_reason
from jellybean_solver import Edge, EdgeKind

Models = Mapping[str, Mapping[str, ModelSignature]]  # operator -> variant -> inputs and outputs of its model


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Shape and dtype of an array in an .npz file, read without loading the array."""

    shape: tuple[int, ...]
    dtype: str


HELD_OUT = "held-out inputs"
Arrays = Mapping[str, ArrayHeader]  # source -> header of its held-out inputs


def check_model_fit(workflow: CheckedWorkflow, flow: Flow, models: Models, arrays: Arrays) -> None:
    """Check each edge: the outputs of all upstream variants, and held-out inputs, fit the input of every variant.

    The variants of an operator whose output is the answer must give alike answers.
    """
    upstreams = {edge.upstream for edges in flow.edges.values() for edge in edges}
    for operator, edges in flow.edges.items():
        for variant, model in models.get(operator, {}).items():
            _check_names(workflow, operator, variant, model, edges)
            _check_fit(workflow, operator, variant, model, edges, models, arrays)
        if operator not in upstreams:
            _check_answers(workflow, operator, models.get(operator, {}))


def _check_answers(workflow: CheckedWorkflow, operator: str, variants: Mapping[str, ModelSignature]) -> None:
    """Check that all variants of a sink answer with tensors of one dtype and rank: clients get those of any plan."""
    answers = [(variant, port) for variant, model in variants.items() if (port := model.output(None)) is not None]
    for variant, port in answers:
        if reason := unserved_reason(port.tensor.dtype):
            _add_unserved(workflow, (operator, variant), variants[variant], port, reason)
    answers = [(variant, port) for variant, port in answers if not unserved_reason(port.tensor.dtype)]
    for variant, other in answers[1:]:
        first, one = answers[0]
        if why := answers_differ(one, other):
            message = f"variants {first} and {variant} answer differently: {why}"
            known = ", ".join(port.name for port in variants[variant].outputs)
            hint = (
                f"name the output that is the answer in each, output: NAME ({variant} has {known}), or change a model"
            )
            workflow.tree.add(("operators", operator, "variants", variant), message, hint, key=True)


def _add_unserved(
    workflow: CheckedWorkflow, where: tuple[str, str], model: ModelSignature, port: Port, reason: str
) -> None:
    """Report that a variant sends an output that is not served; `where`: operator and variant."""
    operator, variant = where
    served = [one.name for one in model.outputs if not unserved_reason(one.tensor.dtype)]
    others = [(one.name, one.tensor.dtype) for one in model.outputs if one.name != port.name]
    hint = "; ".join(filter(None, ["export it again: it has no output that is served", no_served_output(others)]))
    if served:
        hint = f"or send another output: write output: {flow_style(served[0])} in {variant}"
    text = f"output {port.name!r} of {operator} {variant} {reason}"
    workflow.tree.add(("operators", operator, "variants", variant), text, hint, key=True)


def _check_names(
    workflow: CheckedWorkflow, operator: str, variant: str, model: ModelSignature, edges: tuple[Edge, ...]
) -> None:
    """Check that a variant's own names of inputs and outputs are those of its upstreams and its model."""
    path: DocPath = ("operators", operator, "variants", variant)
    takes, gives = [port.name for port in model.inputs], [port.name for port in model.outputs]
    upstreams = [edge.upstream for edge in edges]
    names = model.names
    wrong = [((*path, "inputs"), up, upstreams, "the operator's inputs") for up in names.inputs if up not in upstreams]
    wrong += [
        ((*path, "inputs", up), name, takes, "its inputs") for up, name in names.inputs.items() if name not in takes
    ]
    wrong += [((*path, "output"), name, gives, "its outputs") for name in [names.output] if name and name not in gives]
    wrong += [
        ((*path, "outputs", of), one, gives, "its outputs") for of, one in names.outputs.items() if one not in gives
    ]
    for where, name, known, what in wrong:
        workflow.tree.add(
            where, f"{quoted(name)} is none of {what}", did_you_mean(name, known) or f"{what}: {', '.join(known)}"
        )


def _check_fit(
    workflow: CheckedWorkflow,
    operator: str,
    variant: str,
    model: ModelSignature,
    edges: tuple[Edge, ...],
    models: Models,
    arrays: Arrays,
) -> None:
    """Check that the model has an input for each edge, and that the outputs of all upstream variants fit that input."""
    base: DocPath = ("operators", operator, "inputs")
    if len(edges) != len(model.inputs):
        names = ", ".join(port.name for port in model.inputs)
        message = f"{len(edges)} inputs, but model {variant} takes {len(model.inputs)} ({names})"
        workflow.tree.add(base, message, "write one edge per model input", key=True)
        return
    taken: dict[str, str] = {}
    for index, edge in enumerate(edges):
        port = model.input_for(edge.upstream, index)
        if reason := unserved_reason(port.tensor.dtype):
            text = f"input {port.name!r} of {operator} {variant} {reason}"
            workflow.tree.add((*base, index), text, "export the model with numbers as its inputs")
            continue
        if port.name in taken:
            free = {edge.upstream: _free(model, edges)}
            message = f"{edge.upstream} and {taken[port.name]} both feed input {port.name!r} of model {variant}"
            workflow.tree.add((*base, index), message, f"name each in the variant: inputs: {flow_style(free)}")
            continue
        taken[port.name] = edge.upstream
        found = _edge_problems(workflow, (*base, index), edge, port, models.get(edge.upstream, {}))
        if edge.upstream in arrays:
            header = arrays[edge.upstream]
            found.compare(Tensor(header.dtype, (1, *header.shape[1:])), port, edge.kind, HELD_OUT)
        if why := batch_problem(port, edge.kind):
            found.by_reason.setdefault(why, [])
        for message, upstreams in found.by_reason.items():
            origin = f"{edge.upstream} ({', '.join(upstreams)})" if upstreams else edge.upstream
            text = f"{origin} does not fit input {port.name!r} of {operator} {variant}: {message}"
            conversions = _conversions(workflow, (*base, index), edge, found, message)
            workflow.tree.add((*base, index), text, f"change one of the models, or name another output{conversions}")


@dataclass(frozen=True, slots=True)
class _Misfits:
    """What does not fit one edge: reason -> where it comes from, and reason -> the tensors, given and wanted."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)
    tensors: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def compare(self, given: Tensor, port: Port, kind: EdgeKind, origin: str) -> None:
        """Compare what an upstream variant or the held-out inputs give with the input that takes it."""
        if why := misfits(given, port, kind):
            self.by_reason.setdefault(why, []).append(origin)
            self.tensors[why] = given, port.tensor


def _conversions(workflow: CheckedWorkflow, path: DocPath, edge: Edge, found: _Misfits, reason: str) -> str:
    """What would make the tensors of an edge fit, as the end of a sentence: a step in YAML, another array or export."""
    if reason not in found.tensors:
        return ""
    given, wanted = found.tensors[reason]
    conversion = step_between(given, wanted)
    if conversion is None:
        return half_precision_hint(given, wanted)
    written: Any = workflow.tree.data
    for key in path:
        written = written[key]
    name, taken, read = f"{edge.upstream}_{conversion.step}", written, f"{edge.upstream}_{conversion.step}"
    if edge.kind is EdgeKind.GATHER and isinstance(written, Mapping):  # each child is converted, then they are gathered
        taken = {key: value for key, value in written.items() if key in ("from", "output")}
        read = flow_style({"from": name, **{key: value for key, value in written.items() if key not in taken}})
    text = (
        f", or put a step between them: under operators {name}: {{inputs: [{flow_style(taken)}], "
        f"variants: {{{conversion.step}: {{{conversion.code}}}}}}}, and {read} in place of {flow_style(written)}"
    )
    if HELD_OUT in found.by_reason[reason]:
        text += f", or save the held-out inputs as {conversion.on_array}, and send that"
    return text + half_precision_hint(given, wanted)


def _free(model: ModelSignature, edges: tuple[Edge, ...]) -> str:
    """The name of an input of the model that no edge feeds."""
    fed = {model.input_for(edge.upstream, index).name for index, edge in enumerate(edges)}
    return next((port.name for port in model.inputs if port.name not in fed), model.inputs[0].name)


def _edge_problems(
    workflow: CheckedWorkflow, path: DocPath, edge: Edge, port: Port, upstreams: Mapping[str, ModelSignature]
) -> _Misfits:
    """Why outputs of upstream variants do not fit the input `port`.

    Edges that name an output that does not exist are reported here and are not in the result.
    """
    found = _Misfits()
    for name, upstream in upstreams.items():
        output = upstream.output(edge.output)
        if output is not None and (reason := unserved_reason(output.tensor.dtype)):
            _add_unserved(workflow, (edge.upstream, name), upstream, output, reason)
        elif output is not None:
            found.compare(output.tensor, port, edge.kind, name)
            if edge.kind is EdgeKind.FAN_OUT and output.tensor.shape == ():
                why = "a fan-out needs a leading dimension, the output is a single value"
                found.by_reason.setdefault(why, []).append(name)
        elif edge.output is not None and edge.output not in upstream.names.outputs:  # else `_check_names` reports it
            known = [item.name for item in upstream.outputs]
            how = f"; if {name} only calls it otherwise, write in it outputs: {flow_style({edge.output: known[0]})}"
            hint = did_you_mean(edge.output, known) or f"outputs: {', '.join(known)}{how}"
            workflow.tree.add((*path, "output"), f"model {name} of {edge.upstream} has no output {edge.output!r}", hint)
    return found
