"""Inputs that take the same value in each run, written in the document: no edge feeds them."""

from __future__ import annotations

from dataclasses import replace

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.checks.tensors import ModelSignature, Port
from jellybean.documents.schema.reader import DocPath
from jellybean.quantities import did_you_mean, quoted
from jellybean_agent import ModelError, TensorPort, constant_tensor, unserved_reason


def without_constants(workflow: CheckedWorkflow, operator: str, variant: str, model: ModelSignature) -> ModelSignature:
    """The signature without the inputs that take constants. Adds what is wrong with these."""
    ports = {port.name: port for port in model.inputs}
    path: DocPath = ("operators", operator, "variants", variant, "constants")
    for name, text in model.names.constants.items():
        if name not in ports:
            hint = did_you_mean(name, ports) or f"its inputs: {', '.join(ports)}"
            workflow.tree.add((*path, name), f"{quoted(name)} is none of its inputs", hint, key=True)
        elif problem := _problem(text, ports[name]):
            workflow.tree.add((*path, name), *problem)
    return replace(model, inputs=tuple(port for port in model.inputs if port.name not in model.names.constants))


def _problem(text: str, port: Port) -> tuple[str, str] | None:
    """What is wrong with a constant, and a hint; None if nothing is."""
    tensor = port.tensor
    if reason := unserved_reason(tensor.dtype):
        return f"input {port.name!r} {reason}", "export the model with numbers as its inputs"
    if tensor.shape is None:
        return f"input {port.name!r} has an unknown shape", "export the model with the shape of each input"
    if tensor.shape and tensor.shape[0] is None:
        hint = "let a source bring it"
        return f"input {port.name!r} has as many rows as there are requests in a run: it is no constant", hint
    sizes = tuple(-1 if size is None else size for size in tensor.shape)
    try:
        constant_tensor(text, TensorPort(port.name, tensor.dtype, sizes))
    except ModelError as error:
        return str(error), "write what the model takes"
    return None
