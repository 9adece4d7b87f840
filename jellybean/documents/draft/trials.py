"""Random inputs that the models of a draft really take: sizes and ranges of integers are tried with onnxruntime.

The models run in a process of their own, which a file from elsewhere may bring down, or keep busy for ever.

Models refuse many sizes (a detector wants multiples of 32) and indices (a table has so many rows), and nothing in the
file says which. So inputs are drawn in one way after another until all operators that they reach run.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from jellybean.documents.checks.tensors import SINGLE_ANSWER
from jellybean.documents.draft.heldout import (
    INTEGERS,
    STREAMS,
    Array,
    Drawing,
    HeldOutDraft,
    draw,
    random_inputs,
    undrawn_reason,
)
from jellybean.documents.draft.models import DraftModel, DraftOperator
from jellybean.documents.draft.wiring import Draft, DraftEdge, DraftSource
from jellybean.errors import InputError
from jellybean.quantities import SIZE, format_quantity
from jellybean_agent import (
    MAX_TENSOR_BYTES,
    AgentError,
    Executor,
    ModelError,
    PortNames,
    hash_model,
    initial_state,
    load_problem_of,
    state_inputs,
    trial_process,
    unserved_reason,
)
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import EdgeKind

TRIALS_S = 10.0  # in all, after which no further inputs are tried: a slow model is not run a hundred times
_ROWS_S = 2.0  # in which rows beside the first one are tried
_USUAL_SIZES = (16, 32, 64, 128, 8, 4, 2, 1, 224, 256)
_LARGE_SIZES = (320, 480, 512, 640, 1024)  # last: pictures of these sizes take long to draw
_SIZES = (
    *_USUAL_SIZES,
    *(size for size in range(1, 129) if size not in _USUAL_SIZES),
    *_LARGE_SIZES,
)
_STREAM_ROWS = 8  # of each stream, if an operator keeps a state
_MAX_REASON = 240  # characters


def tried_inputs(draft: Draft) -> HeldOutDraft:
    """Random inputs of a draft's sources. Where no model takes any, there are none, and the reason.

    InputError, with a line for each, if onnxruntime does not load models. Without onnxruntime here, they are drawn
    untried.
    """
    drawn = random_inputs(draft.sources)
    if importlib.util.find_spec("onnxruntime") is not None:
        drawn = _tried(draft, drawn)
    if drawn.arrays and any(model.state for operator in draft.operators for model in operator.variants.values()):
        rows = min(len(array) for array in drawn.arrays.values())
        arrays = {**drawn.arrays, STREAMS: np.arange(rows) // _STREAM_ROWS}
        drawn = replace(drawn, arrays=arrays)
    return drawn


def _tried(draft: Draft, drawn: HeldOutDraft) -> HeldOutDraft:
    problems: list[str] = []
    executors = {one.name: _executors(one, draft.edges[one.name], problems) for one in draft.operators}
    if problems:
        raise InputError("\n".join(problems))
    arrays, refusals = dict(drawn.arrays), dict[str, str]()
    for source in draft.sources:
        if source.name not in arrays and (reason := undrawn_reason(source.tensor)):
            refusals[source.name] = reason
    ends_s = time.monotonic() + TRIALS_S
    for operators, sources in _parts(draft):
        trial = _Trial(draft.edges, [(name, executors[name]) for name in operators])
        found, reason = _first_taken(trial, sources, ends_s)
        for source in sources:
            arrays.pop(source.name, None)
            if reason:
                refusals[source.name] = reason
        arrays.update(found)
    array_of = {source.name: source.name for source in draft.sources if source.name in arrays}
    return HeldOutDraft({name: arrays[name] for name in array_of}, array_of, is_random=True, refusals=refusals)


def _executors(operator: DraftOperator, edges: Sequence[DraftEdge], problems: list[str]) -> list[tuple[Executor, str]]:
    """The models of an operator, each with the output that is its answer; of those that do not load the `problems`.

    Without those that only another device than the CPU loads, or that take text.
    """
    found: list[tuple[Executor, str]] = []
    for model in operator.variants.values():
        if any(unserved_reason(port.tensor.dtype) for port in model.signature.inputs):
            continue  # `validate` says so
        try:
            sha256 = hash_model(model.path)[0]
            executor = Executor(model.path, sha256, _fed(model, edges), open_session=trial_process().open)
            found.append((executor, model.signature.outputs[0].name))
        except ModelError as error:
            problem = load_problem_of(error)
            if not problem.on_cpu_only:
                problems.append(f"{model.path}: {problem}")
    return found


def _fed(model: DraftModel, edges: Sequence[DraftEdge]) -> dict[str, str]:
    """Upstream -> input of the model."""
    inputs = {edge.upstream: port.name for edge, port in zip(edges, model.signature.inputs, strict=True)}
    constants = {name: canonical_json(value) for name, value in model.constants.items()}
    names = PortNames(inputs, constants=constants)
    return {**names.input_by_upstream(inputs), **state_inputs(model.state)}


def _parts(draft: Draft) -> Iterator[tuple[list[str], list[DraftSource]]]:
    """Operators, in the order of the data, and the sources that they are connected with, by connected component."""
    parts: list[set[str]] = []
    for name, edges in draft.edges.items():
        joined = {name, *(edge.upstream for edge in edges)}
        for part in [one for one in parts if one & joined]:
            parts.remove(part)
            joined |= part
        parts.append(joined)
    for part in parts:
        yield (
            [operator.name for operator in draft.operators if operator.name in part],
            [source for source in draft.sources if source.name in part],
        )


def _first_taken(trial: _Trial, sources: Sequence[DraftSource], ends_s: float) -> tuple[Mapping[str, Array], str]:
    """The first drawing of these sources that all operators take; or none, and why the first one was refused.

    A drawing that is refused only behind an operator that takes it is better than none: edges are guesses.
    """
    names = {source.name for source in sources}
    first, taken_at_first = "", dict[str, Array]()
    for drawings in _drawings(sources):
        drawn = {source.name: draw(source, drawing) for source, drawing in drawings}
        arrays = {name: array for name, array in drawn.items() if array is not None}
        if len(arrays) < len(sources):
            if drawings[0][1] == Drawing():
                return arrays, ""  # text, or an unknown number of dimensions: nothing can be tried
            continue
        refusal = trial.refusal(arrays)
        if refusal is None:
            return arrays, ""
        operator, reason = refusal
        if not names & {edge.upstream for edge in trial.edges[operator]}:
            taken_at_first = taken_at_first or arrays
        first = first or f"{operator}: {reason}"
        if time.monotonic() >= ends_s:
            break
    return (taken_at_first, "") if taken_at_first else ({}, first)


def _drawings(sources: Sequence[DraftSource]) -> Iterator[list[tuple[DraftSource, Drawing]]]:
    """Ways to draw the sources: first alike in all of them, then each with a size of its own."""
    sized = [source for source in sources if source.tensor.shape and None in source.tensor.shape[1:]]
    ranged = [source for source in sources if "int" in source.tensor.dtype]
    for integers, size in product(INTEGERS if ranged else INTEGERS[:1], _SIZES if sized else _SIZES[:1]):
        yield [(source, Drawing(size, *integers)) for source in sources]
    if ranged and sized:  # lengths of sequences
        for size in _SIZES:
            yield [
                (source, Drawing(size, size, size + 1) if source not in sized else Drawing(size)) for source in sources
            ]
    if len(sized) > 1:
        for sizes in product(_USUAL_SIZES, repeat=len(sized)):
            of = dict(zip((source.name for source in sized), sizes, strict=True))
            yield [(source, Drawing(of.get(source.name, _SIZES[0]), *INTEGERS[1])) for source in sources]


@dataclass(frozen=True)
class _Trial:
    """The operators of a connected part of a draft, in the order of the data, with their models."""

    edges: Mapping[str, tuple[DraftEdge, ...]]
    models: Sequence[tuple[str, Sequence[tuple[Executor, str]]]]

    def refusal(self, arrays: Mapping[str, Array]) -> tuple[str, str] | None:
        """An operator that does not take a row, and why; None if all that is tried are taken."""
        ends_s = time.monotonic() + _ROWS_S
        for row in range(min(len(array) for array in arrays.values()) if arrays else 0):
            refusal = self._refused_row({name: array[row : row + 1] for name, array in arrays.items()})
            if refusal is not None:
                return refusal
            if time.monotonic() >= ends_s:
                break
        return None

    def _refused_row(self, tensors: dict[str, Array]) -> tuple[str, str] | None:
        for name, executors in self.models:
            edges = self.edges[name]
            if not all(edge.upstream in tensors for edge in edges):
                continue  # below a model that did not run here, or that has no rows to go on with
            inputs = [_sent(tensors[edge.upstream], edge) for edge in edges]
            for number, (executor, answer) in enumerate(executors):
                state = initial_state(executor.inputs[len(edges) :])
                try:
                    outputs = executor.run((*inputs, *state)).outputs
                except AgentError as error:
                    return name, " ".join(str(error).split())[:_MAX_REASON]
                if reason := self._unsent_reason(name, answer, outputs):
                    return name, reason
                if number == 0:
                    self._pass_on(name, outputs, tensors)
        return None

    def _unsent_reason(self, name: str, answer: str, outputs: Mapping[str, Array]) -> str:
        """Why what an operator gives cannot be sent, which shapes in the file did not show; empty if it can.

        `answer`: the model's output that is sent where no edge names another one.
        """
        read = {edge.output or answer for edges in self.edges.values() for edge in edges if edge.upstream == name}
        sent = ((output, outputs[output]) for output in read or {answer} if output in outputs)
        return next((reason for output, array in sent if (reason := _unsent_reason(output, array))), "")

    def _pass_on(self, name: str, outputs: Mapping[str, Array], tensors: dict[str, Array]) -> None:
        sent = {edge.output for edges in self.edges.values() for edge in edges if edge.upstream == name}
        answer = outputs.get(next(iter(sent), None) or next(iter(outputs)))
        if len(sent) == 1 and answer is not None and answer.ndim and len(answer):
            tensors[name] = answer


def _unsent_reason(name: str, answer: Array) -> str:
    """Why an answer cannot be sent, which its shape in the file did not show; empty if it can."""
    if answer.ndim == 0:
        return f"output {name} is {SINGLE_ANSWER}"
    if answer.nbytes > MAX_TENSOR_BYTES:
        sizes = [format_quantity(SIZE, size, 3) for size in (answer.nbytes, MAX_TENSOR_BYTES)]
        return f"output {name} has {sizes[0]}, and a tensor at most {sizes[1]}: answer with less of it"
    return ""


def _sent(tensor: Array, edge: DraftEdge) -> Array | tuple[Array, ...]:
    if edge.kind is EdgeKind.GATHER:
        return (tensor,)
    return tensor[:1] if edge.kind is EdgeKind.FAN_OUT else tensor
