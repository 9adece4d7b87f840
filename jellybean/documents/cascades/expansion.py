"""A workflow with a cascade, written as an ordinary workflow: the operator as four."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jellybean.documents.cascades.cascade import Cascade
from jellybean.documents.checks.tensors import ModelSignature, Port, Sizes, Tensor, shape_text
from jellybean.documents.schema.cascade import CascadeFlows, FlowSpec
from jellybean.documents.schema.workflow import (
    MEASURED,
    InputSpec,
    OperatorSpec,
    VariantSpec,
    WorkflowDocument,
)
from jellybean.quantities import InvalidValueError, did_you_mean, quoted
from jellybean_agent import BUILTIN_STEPS_MODULE

_NUMBERS = ("float", "int", "uint")


@dataclass(frozen=True, slots=True)
class CascadeTensors:
    """What flows between the operators of a cascade: the scores, the data that is passed on, and the answers."""

    scores: Tensor
    data: Tensor
    answer: Tensor


def tensors_of(cascade: Cascade, models: Mapping[str, ModelSignature]) -> CascadeTensors:
    """The tensors of a cascade whose variants have these signatures. InvalidValueError if they do not go together.

    Without signatures they are those that the cascade states.
    """
    if not models and cascade.spec.flows is not None:
        flows = cascade.spec.flows
        return CascadeTensors(*map(_stated, (flows.scores, flows.data, flows.answer)))
    first, then = models[cascade.spec.first], models[cascade.spec.then]
    output = cascade.spec.condition.output
    scores = first.output(output)
    if scores is None:
        names = [port.name for port in first.outputs]
        hint = did_you_mean(output, names) or f"outputs: {', '.join(names)}"
        raise InvalidValueError(f"{cascade.spec.first} has no output {quoted(output)}", hint)
    if not scores.tensor.dtype.startswith(_NUMBERS):
        raise InvalidValueError(f"output {output} is {scores.tensor.dtype}", "compare an output of numbers")
    upstream = cascade.edge.upstream
    given = [model.input_for(upstream, 0) for model in (first, then)]
    answers = [port for model in (first, then) if (port := model.output(cascade.answer_output)) is not None]
    if len(answers) < 2:
        raise InvalidValueError(f"its variants do not both have the output {cascade.answer_output}", "name it in both")
    return CascadeTensors(_sized(scores), _common("takes", *given), _common("answers with", *answers))


def _stated(flow: FlowSpec) -> Tensor:
    return Tensor(flow.dtype, (None, *(None if size < 0 else size for size in flow.shape)))


def stated_flows(cascade: Cascade, document: WorkflowDocument) -> CascadeFlows | None:
    """What flows in a cascade of models, from the arguments of its steps. `document`: the workflow with it."""
    unsure, answer = (
        document.operators[name].variants[cascade.variant].arguments for name in (cascade.unsure, cascade.operator)
    )
    if not unsure:
        return None
    return CascadeFlows(
        scores=FlowSpec(dtype=unsure["score_dtype"], shape=list(unsure["classes"])),
        data=FlowSpec(dtype=unsure["dtype"], shape=list(unsure["shape"])),
        answer=FlowSpec(dtype=answer["dtype"], shape=list(answer["shape"])),
    )


def _sized(port: Port) -> Tensor:
    if not port.tensor.shape:
        raise InvalidValueError(
            f"the shape of {port.name!r} is unknown", "export the model with the number of its dimensions"
        )
    return port.tensor


def _common(verb: str, first: Port, then: Port) -> Tensor:
    """The tensor that both variants take or give; sizes in which they differ are open."""
    one, other = _sized(first), _sized(then)
    sizes, more = one.shape or (), other.shape or ()
    if one.dtype != other.dtype or len(sizes) != len(more):
        texts = [f"{tensor.dtype} {shape_text(tensor.shape or ())}" for tensor in (one, other)]
        raise InvalidValueError(f"its first variant {verb} {texts[0]}, the second {texts[1]}", "change a model")
    return Tensor(one.dtype, tuple(a if a == b else None for a, b in zip(sizes, more, strict=True)))


def cascade_workflow(cascade: Cascade, plain: WorkflowDocument, tensors: CascadeTensors | None) -> WorkflowDocument:
    """The workflow `plain`, without cascades, in which the operator is this cascade. `tensors`: None if not served."""
    operators: dict[str, OperatorSpec] = {}
    for name, spec in plain.operators.items():
        if name == cascade.operator:
            operators.update(_parts(cascade, tensors))
        else:
            inputs = tuple(_of_answer(edge, cascade.operator) for edge in spec.inputs)
            operators[name] = spec.model_copy(update={"inputs": inputs})
    return plain.model_copy(update={"operators": operators})


def _of_answer(edge: InputSpec, operator: str) -> InputSpec:
    """The edge, which names no output of the cascade: its answer is the only one."""
    return edge.model_copy(update={"output": None}) if edge.upstream == operator else edge


def _parts(cascade: Cascade, tensors: CascadeTensors | None) -> Iterator[tuple[str, OperatorSpec]]:
    """The four operators by name."""
    own, spec, edge = cascade.whole, cascade.spec, cascade.edge
    condition, upstream, answer = spec.condition, edge.upstream, cascade.answer_output
    whole = {"cuts": None}  # the operator's, which is 0
    first = {"variants": {spec.first: own.variants[spec.first].model_copy(update=whole)}, "cuts": 0}
    yield cascade.first, own.model_copy(update=first)
    yield (
        cascade.unsure,
        OperatorSpec(
            inputs=(_edge(cascade.first, output=condition.output), edge),
            variants={cascade.variant: _unsure(cascade, tensors)},
            tiers=own.tiers,
            batch=own.batch,
        ),
    )
    passed_on = _edge(cascade.unsure, ratio=MEASURED, stays_in=_stays_in(cascade))
    second = own.variants[spec.then]
    renamed = {cascade.unsure if name == upstream else name: port for name, port in second.inputs.items()}
    variants = {spec.then: second.model_copy(update={"inputs": renamed, **whole})}
    yield cascade.then, own.model_copy(update={"inputs": (passed_on,), "variants": variants, "cuts": 0})
    answers = _edge(cascade.first, output=answer), _edge(cascade.then, output=answer, gather=True)
    last = {cascade.variant: _answer(cascade, tensors)}
    yield cascade.operator, OperatorSpec(inputs=answers, variants=last, tiers=own.tiers)


def _edge(upstream: str, **settings: Any) -> InputSpec:
    return InputSpec.model_validate({"from": upstream, **settings})


def _stays_in(cascade: Cascade) -> tuple[str, ...] | None:
    """Tiers that the operator's input may be in, as what is passed on is the same data."""
    source = cascade.workflow.sources.get(cascade.edge.upstream)
    of_source = None if source is None else source.stays_in
    limits = [limit for limit in (cascade.edge.stays_in, of_source) if limit is not None]
    if not limits:
        return None
    return tuple(tier for tier in limits[0] if all(tier in limit for limit in limits))


def _unsure(cascade: Cascade, tensors: CascadeTensors | None) -> VariantSpec:
    if tensors is None:
        return VariantSpec()
    condition = cascade.spec.condition
    arguments = {
        "below": condition.below,
        "softmax": condition.softmax,
        "score_dtype": tensors.scores.dtype,
        "classes": _sizes(tensors.scores.shape),
        "dtype": tensors.data.dtype,
        "shape": _sizes(tensors.data.shape),
    }
    names = {cascade.first: "scores", cascade.edge.upstream: "data"}
    return _step("unsure", {"with": arguments, "inputs": names, "rows": "rows"})


def _answer(cascade: Cascade, tensors: CascadeTensors | None) -> VariantSpec:
    if tensors is None:
        return VariantSpec()
    arguments = {"dtype": tensors.answer.dtype, "shape": _sizes(tensors.answer.shape)}
    return _step("later_answer", {"with": arguments, "inputs": {cascade.first: "first", cascade.then: "then"}})


def _step(name: str, settings: Mapping[str, Any]) -> VariantSpec:
    return VariantSpec.model_validate({"python": f"{BUILTIN_STEPS_MODULE}:{name}", **settings})


def _sizes(shape: Sizes | None) -> list[int]:
    """The sizes without the batch, as steps take them."""
    return [-1 if size is None else size for size in (shape or ())[1:]]
