"""Check that models fit each other along the edges, with the names that each variant gives its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jellybean.documents.checks.checked import CheckedWorkflow, certain_answers
from jellybean.documents.checks.conversions import Conversion, on_array, steps_between
from jellybean.documents.checks.step_shapes import with_given_shapes
from jellybean.documents.checks.tensors import (
    BATCH_ADVICE,
    SINGLE_ANSWER,
    ModelSignature,
    Port,
    Tensor,
    answers_differ,
    batch_problem,
    half_precision_hint,
    misfits,
)
from jellybean.documents.flow import Flow
from jellybean.documents.schema.flow_style import flow_style
from jellybean.documents.schema.reader import DocPath
from jellybean.quantities import did_you_mean, quoted
from jellybean_agent import is_zipmap, no_served_output, unserved_reason
from jellybean_solver import Edge, EdgeKind

Models = Mapping[str, Mapping[str, ModelSignature]]  # operator -> variant -> inputs and outputs of its model


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Shape and dtype of an array in an .npz file, read without loading the array."""

    shape: tuple[int, ...]
    dtype: str


HELD_OUT = "held-out inputs"
_SCORES = ("float32", "float64")  # types of the tensor that a classifier gives in place of a ZipMap
Arrays = Mapping[str, ArrayHeader]  # source -> header of its held-out inputs


def check_model_fit(workflow: CheckedWorkflow, flow: Flow, models: Models, arrays: Arrays) -> None:
    """Check each edge: the outputs of all upstream variants, and held-out inputs, fit the input of every variant.

    The variants of an operator whose output is the answer must give alike answers.
    """
    answers = certain_answers(workflow)
    fan_outs = [edge for edges in flow.edges.values() for edge in edges if edge.kind is EdgeKind.FAN_OUT]
    for operator, edges in flow.edges.items():
        for variant, model in models.get(operator, {}).items():
            _check_names(workflow, operator, variant, model, edges)
            _check_rows(workflow, operator, variant, model, [edge for edge in fan_outs if edge.upstream == operator])
            _check_fit(workflow, operator, variant, model, edges, models, arrays)
        if operator in answers:
            _check_answers(workflow, operator, models.get(operator, {}))


def with_step_shapes(workflow: CheckedWorkflow, flow: Flow, models: Models, arrays: Arrays) -> Models:
    """The models with the sizes that built-in steps give for what reaches them, followed from the sources on."""
    if workflow.document is None:
        return models
    known: dict[str, Mapping[str, ModelSignature]] = {}
    for operator in flow.order:
        edges, spec = flow.edges.get(operator, ()), workflow.document.operators[operator]
        given = _given(edges[0], known, arrays) if len(edges) == 1 else []
        known[operator] = {
            variant: with_given_shapes(
                spec.variants[variant].python or "", spec.variants[variant].arguments, one, given
            )
            for variant, one in models.get(operator, {}).items()
        }
    return {operator: known.get(operator, variants) for operator, variants in models.items()}


def _given(edge: Edge, models: Models, arrays: Arrays) -> list[Tensor]:
    """The tensors that an edge may bring: of each upstream variant, or of the held-out inputs."""
    if edge.upstream in arrays:
        return [_row_of(arrays[edge.upstream])]
    outputs = [model.output(edge.output) for model in models.get(edge.upstream, {}).values()]
    return [output.tensor for output in outputs if output is not None]


def _row_of(header: ArrayHeader) -> Tensor:
    """The tensor that one row of held-out inputs is sent as."""
    return Tensor(header.dtype, (1, *header.shape[1:]))


def _check_answers(workflow: CheckedWorkflow, operator: str, variants: Mapping[str, ModelSignature]) -> None:
    """Check that all variants of a sink answer with tensors of one dtype and rank: clients get those of any plan."""
    answers = [(variant, port) for variant, model in variants.items() if (port := model.output(None)) is not None]
    for variant, port in answers:
        if reason := unserved_reason(port.tensor.dtype):
            _add_unserved(workflow, (operator, variant), variants[variant], port, reason)
        elif port.tensor.shape == ():
            what, _, hint = SINGLE_ANSWER.partition(": ")
            text = f"output {port.name!r} of {operator} {variant} is {what}"
            workflow.tree.add(("operators", operator, "variants", variant), text, hint, key=True)
    answers = [(variant, port) for variant, port in answers if not unserved_reason(port.tensor.dtype)]
    for variant, other in answers[1:]:
        first, one = answers[0]
        if why := answers_differ(one, other):
            message = f"variants {first} and {variant} answer differently: {why}"
            known = ", ".join(port.name for port in variants[variant].outputs)
            hint = (
                f"name the output that is the answer in each, output: NAME ({variant} has {known}), or change a model"
            )
            scores = [
                (name, port)
                for name in (first, variant)
                for port in variants[name].outputs
                if is_zipmap(port.tensor.dtype)
            ]
            hint = "; ".join([hint, *(_export_anew(name, port) for name, port in scores)])
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


def _check_rows(
    workflow: CheckedWorkflow, operator: str, variant: str, model: ModelSignature, fanned_out: Sequence[Edge]
) -> None:
    """Check that `rows` is for a fan-out, and names an output of integers for each output that is fanned out."""
    names = model.names
    if not names.counts_rows:
        return
    where: DocPath = ("operators", operator, "variants", variant, "rows")
    known = ", ".join(port.name for port in model.outputs)
    types = {port.name: port.tensor.dtype for port in model.outputs}
    if not fanned_out:
        workflow.tree.add(where, f"{operator} does not fan out, so no rows are counted", "remove it")
        return
    for name in dict.fromkeys([*filter(None, [names.rows]), *names.rows_of, *names.rows_of.values()]):
        if name not in types:
            workflow.tree.add(where, f"{quoted(name)} is none of its outputs", f"its outputs: {known}")
            return
    for name in dict.fromkeys([*filter(None, [names.rows]), *names.rows_of.values()]):
        if not types[name].startswith(("int", "uint")):
            message = f"output {name} is {types[name]}: numbers of rows are integers, one for each request"
            workflow.tree.add(where, message, f"its outputs: {known}")
    for edge in fanned_out:
        output = model.output(edge.output)
        if output is not None and names.counter_of(output.name) is None:
            message = f"the rows of {output.name}, which is fanned out to {edge.downstream}, are not counted"
            workflow.tree.add(where, message, f"write the output with their numbers: {{{output.name}: NAME}}")


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
        if port.tensor.shape is None:
            text = f"input {port.name!r} of {operator} {variant} does not state its number of dimensions"
            hint = "export the model with a shape for it, [batch, ...], whose sizes may be open"
            workflow.tree.add((*base, index), text, hint)
            continue
        if port.name in taken:
            free = {edge.upstream: _free(model, edges)}
            message = f"{edge.upstream} and {taken[port.name]} both feed input {port.name!r} of model {variant}"
            workflow.tree.add((*base, index), message, f"name each in the variant: inputs: {flow_style(free)}")
            continue
        taken[port.name] = edge.upstream
        found = _edge_problems(workflow, (*base, index), edge, port, models.get(edge.upstream, {}))
        if edge.upstream in arrays:
            found.compare(_row_of(arrays[edge.upstream]), port, edge.kind, HELD_OUT)
        wrong_rows = batch_problem(port, edge.kind)
        if wrong_rows:
            found.by_reason.setdefault(wrong_rows, [])
        for message, upstreams in found.by_reason.items():
            origin = f"{edge.upstream} ({', '.join(upstreams)})" if upstreams else edge.upstream
            text = f"{origin} does not fit input {port.name!r} of {operator} {variant}: {message}"
            written = _written(workflow, (*base, index))
            senders = models.get(edge.upstream, {})
            other_output = _other_output(written, edge, port, senders) or _own_outputs(edge, port, upstreams, senders)
            change = "change the model" if upstreams == [HELD_OUT] else "change one of the models"
            change = BATCH_ADVICE if message == wrong_rows else change
            conversions = _conversions(workflow, written, edge, found, message)
            workflow.tree.add((*base, index), text, ", or ".join([*other_output, change, *conversions]))


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


def _written(workflow: CheckedWorkflow, path: DocPath) -> Any:
    """The value of the document at a path, as it is written there."""
    value: Any = workflow.tree.data
    for key in path:
        value = value[key]
    return value


def _other_output(written: Any, edge: Edge, port: Port, upstreams: Mapping[str, ModelSignature]) -> list[str]:
    """The edge to write where another output of all upstream variants fits; one of known type and shape comes first.

    Empty if none fits, or if the tensors that do not fit are those of a source.
    """
    outputs = [one for model in upstreams.values() for one in model.outputs]
    names = [name for name in dict.fromkeys(one.name for one in outputs) if name != edge.output]
    found: list[tuple[bool, str]] = []
    for name in names:
        given = [model.output(name) for model in upstreams.values()]
        if all(one is not None and not _refusal(one.tensor, port, edge.kind) for one in given):
            is_open = any(one is None or one.tensor.shape is None or None in one.tensor.shape[1:] for one in given)
            found.append((is_open, name))
    if not found:
        return []
    edge_as_written = written if isinstance(written, Mapping) else {"from": edge.upstream}
    name = min(found, key=lambda item: item[0])[1]
    return [f"write {flow_style({**edge_as_written, 'output': name})} in place of {flow_style(written)}"]


def _own_outputs(edge: Edge, port: Port, variants: Sequence[str], upstreams: Mapping[str, ModelSignature]) -> list[str]:
    """What to write in each of these variants so that it sends another output of its model, which fits.

    Empty unless each of them has such an output, or one that fits once it is exported as a tensor (ZipMap).
    """
    ways: list[str] = []
    for variant in variants:
        model = upstreams.get(variant)
        sent = model.output(edge.output) if model is not None else None
        others = [one for one in model.outputs if one != sent] if model is not None else []
        maps = next((one for one in others if is_zipmap(one.tensor.dtype) and port.tensor.dtype in _SCORES), None)
        if (fitting := _fitting(others, port, edge.kind)) is not None:
            ways.append(f"write {_named_output(edge, fitting)} in {variant}")
        elif maps is not None:
            ways.append(f"{_export_anew(variant, maps)}; then write {_named_output(edge, maps)} in {variant}")
        else:
            return []
    return [" and ".join(ways)] if ways else []


def _fitting(outputs: Sequence[Port], port: Port, kind: EdgeKind) -> Port | None:
    """An output that can be sent to an input, one of known type and shape if there is one; None if none can."""
    found = [one for one in outputs if not _refusal(one.tensor, port, kind)]
    return min(found, key=lambda one: one.tensor.shape is None or None in one.tensor.shape[1:], default=None)


def _named_output(edge: Edge, output: Port) -> str:
    """The key of a variant that makes an edge carry this output of its model."""
    if edge.output is None:
        return f"output: {flow_style(output.name)}"
    return f"outputs: {flow_style({edge.output: output.name})}"


def _export_anew(variant: str, output: Port) -> str:
    """What to do about a classifier's scores that are a list of maps."""
    return f"export {variant} again, as its output {output.name} {unserved_reason(output.tensor.dtype)}"


def _refusal(tensor: Tensor, port: Port, kind: EdgeKind) -> str:
    """Why an output cannot be sent to an input; empty if it can."""
    return unserved_reason(tensor.dtype) or misfits(tensor, port, kind)


def _conversions(workflow: CheckedWorkflow, written: Any, edge: Edge, found: _Misfits, reason: str) -> list[str]:
    """What would make the tensors of an edge fit: steps in YAML, another array, or another export."""
    if reason not in found.tensors:
        return []
    given, wanted = found.tensors[reason]
    ways: list[str] = []
    if steps := steps_between(given, wanted):
        ways.append(_as_operators(workflow, written, edge, steps))
        if HELD_OUT in found.by_reason[reason]:
            ways.append(f"save the held-out inputs as {on_array(steps)}, and send that")
    return [*ways, *filter(None, [half_precision_hint(given, wanted)])]


def _as_operators(workflow: CheckedWorkflow, written: Any, edge: Edge, steps: tuple[Conversion, ...]) -> str:
    """The YAML of an operator for each step, one after the other, and of the edge to the last one."""
    operators: list[str] = []
    taken, others = written, {}
    if edge.kind is EdgeKind.GATHER and isinstance(written, Mapping):  # each child is converted, then they are gathered
        taken = {key: value for key, value in written.items() if key in ("from", "output")}
        others = {key: value for key, value in written.items() if key not in taken}
    name = edge.upstream
    for step in steps:
        name = _unused_name(workflow, f"{name}_{step.step}")
        variants = f"{{{step.step}: {{{step.code}}}}}"
        operators.append(f"{name}: {{inputs: [{flow_style(taken)}], variants: {variants}}}")
        taken = name
    read = flow_style({"from": name, **others}) if others else name
    what = "a step" if len(steps) == 1 else "steps"
    listed = " and ".join(operators)
    return f"put {what} between them: under operators {listed}, and {read} in place of {flow_style(written)}"


def _unused_name(workflow: CheckedWorkflow, name: str) -> str:
    """The name, with a number after it if a source or operator has it."""
    taken = {*workflow.names("sources"), *workflow.names("operators")}
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (name, *numbered) if one not in taken)


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
            meant = _fitting(upstream.outputs, port, edge.kind) or upstream.outputs[0]
            how = f"; if {name} only calls it otherwise, write in it {_named_output(edge, meant)}"
            hint = did_you_mean(edge.output, known) or f"outputs: {', '.join(known)}{how}"
            workflow.tree.add((*path, "output"), f"model {name} of {edge.upstream} has no output {edge.output!r}", hint)
    return found
