"""Check operators with a `state:`: where they stand in the workflow, their tensors, and the streams of the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.checks.tensors import ModelSignature, Port, misfits, shape_text
from jellybean.documents.checks.workflow_checks import connected_sources
from jellybean.documents.flow import Flow
from jellybean.documents.schema.workflow import OperatorSpec, WorkflowDocument
from jellybean.quantities import did_you_mean, quoted
from jellybean_agent import rows_axis, rows_first
from jellybean_solver import Deliver, EdgeKind


def check_states(workflow: CheckedWorkflow, flow: Flow) -> None:
    """Check the operators and sources of a workflow with states; without `state:` no source has streams."""
    document, tree = workflow.document, workflow.tree
    if document is None:
        return
    stateful = [name for name, operator in document.operators.items() if operator.state is not None]
    if not stateful and not workflow.broken:
        for name, source in document.sources.items():
            if source.streams is not None:
                tree.add(("sources", name, "streams"), "no operator keeps a state by stream", "leave streams out")
        if document.stream_ids is not None:
            tree.add(("stream_ids",), "no operator keeps a state by stream", "leave stream_ids out")
        return
    for name in stateful:
        for message, hint in _operator_problems(name, document.operators[name], document, flow):
            tree.add(("operators", name, "state"), message, hint, key=True)
    if stateful:
        _check_sources(workflow, document, stateful[0])


def _operator_problems(
    name: str, operator: OperatorSpec, document: WorkflowDocument, flow: Flow
) -> Iterator[tuple[str, str]]:
    if _depth(name, flow) > 0:
        yield "the operator is below a fan-out: a stream has one state, not one for each child", "gather before it"
    if any(operator.cuts_of(variant) for variant in operator.variants):
        yield "a model with a state is not cut in two", "leave cuts out"
    if functions := [variant for variant, spec in operator.variants.items() if spec.python is not None]:
        yield f"variant {functions[0]} is a Python function, which keeps no state", "use an ONNX model"


def _depth(name: str, flow: Flow) -> int:
    """Number of fan-outs that are open at an operator."""
    edges = flow.edges.get(name, ())
    if not edges:
        return 0
    step = {EdgeKind.EACH: 0, EdgeKind.FAN_OUT: 1, EdgeKind.GATHER: -1}[edges[0].kind]
    return _depth(edges[0].upstream, flow) + step


def _check_sources(workflow: CheckedWorkflow, document: WorkflowDocument, operator: str) -> None:
    tree = workflow.tree
    for sources in _sources_of_streams(document):
        streams = {name: document.sources[name].streams for name in sources}
        for name, count in streams.items():
            if count is None:
                hint = "write streams: 200, the number of streams that its rate is made of"
                message = f"{operator} keeps a state by stream, and no number of streams"
                tree.add(("sources", name), message, hint, key=True)
            elif count != next(filter(None, streams.values())):
                message = "a chunk has one message of each source: their streams differ"
                tree.add(("sources", name, "streams"), message, "")
            if document.sources[name].deliver is Deliver.EVENTUALLY:
                message = (
                    f"{operator} keeps a state by stream, whose chunks cannot be answered later, out of their order"
                )
                tree.add(("sources", name, "deliver"), message, "leave deliver out")
    if any(source.inputs is not None for source in document.sources.values()) and document.stream_ids is None:
        hint = "write stream_ids: data/heldout.npz#streams, the stream of each row; a stream's rows are in order"
        tree.add(("operators", operator, "state"), "the held-out inputs do not say their streams", hint, key=True)


def _sources_of_streams(document: WorkflowDocument) -> list[list[str]]:
    """The sources of each request that an operator with a state answers; sources of one rate make one request."""
    if len({source.rate_per_s for source in document.sources.values()}) == 1:
        return [[*document.sources]]
    above: dict[str, set[str]] = {}
    for name, operator in document.operators.items():
        above[name] = {edge.upstream for edge in operator.inputs}
    fed = {name for name, operator in document.operators.items() if operator.state is not None}
    while more := {up for name in fed for up in above.get(name, ())} - fed:
        fed |= more
    return [sources for sources in connected_sources(document) if not fed.isdisjoint(sources)]


def without_state(
    workflow: CheckedWorkflow, operator: str, spec: OperatorSpec, variant: str, model: ModelSignature
) -> ModelSignature:
    """The signature without the inputs that take the state, which no edge feeds. Adds what is wrong with them."""
    if spec.state is None:
        return model
    edge_inputs = tuple(port for port in model.inputs if port.name not in spec.state.tensors)
    for given, made in spec.state.tensors.items():
        path = ("operators", operator, "state", "tensors", given)
        for message, hint in _tensor_problems(variant, model, edge_inputs, given, made):
            workflow.tree.add(path, message, hint, key=True)
    return replace(model, inputs=edge_inputs)


def _tensor_problems(
    variant: str, model: ModelSignature, edge_inputs: Sequence[Port], given: str, made: str
) -> Iterator[tuple[str, str]]:
    """What is wrong with the input `given` and the output `made` of a state, and hints."""
    takes, gives = {port.name: port for port in model.inputs}, {port.name: port for port in model.outputs}
    for name, known, what in ((given, takes, "input"), (made, gives, "output")):
        if name not in known:
            hint = did_you_mean(name, known) or f"{what}s: {', '.join(known)}"
            yield f"model {variant} has no {what} {quoted(name)}", hint
    if given not in takes:
        return
    axis = rows_axis(takes[given].tensor.shape or ())
    taken = _rows_first(takes[given], axis)
    shape = taken.tensor.shape
    subject = f"input {quoted(given)} of model {variant}"
    if shape is not None and (not shape or None in shape[1:]):
        figures = shape_text(takes[given].tensor.shape or ())
        hint = "export it with fixed sizes: at the begin of a stream it is filled with zeros"
        yield f"{subject} has shape {figures}, whose sizes beside the rows are not fixed", hint
    elif shape is not None and shape[0] not in (None, 1):
        hint = "export it with a dimension of any size, or of 1, for the rows of the batch: states are stacked along it"
        yield f"{subject} has {shape[0]} rows, a stream's state has 1", hint
    elif shape is not None and shape[0] == 1 and (port := _of_any_rows(edge_inputs)) is not None:
        hint = "export both with a dynamic leading dimension, or both with 1"
        yield f"{subject} takes exactly 1 row, input {quoted(port.name)} a batch", hint
    elif made in gives and (why := misfits(_rows_first(gives[made], axis).tensor, taken, EdgeKind.EACH)):
        yield f"output {quoted(made)} of model {variant} does not fit input {quoted(given)}: {why}", "change the model"


def _rows_first(port: Port, axis: int) -> Port:
    """The input or output of a state as it is served: with its axis of rows moved to the front."""
    shape = port.tensor.shape
    moved = shape if shape is None or len(shape) <= axis else rows_first(shape, axis)
    return replace(port, tensor=replace(port.tensor, shape=moved))


def _of_any_rows(ports: Sequence[Port]) -> Port | None:
    """An input whose number of rows is not fixed, if there is one."""
    return next((port for port in ports if port.tensor.shape and port.tensor.shape[0] is None), None)
