"""Runs requests through the workflow without clock or network, on the agents' own brain and executor, as one worker.

Fan-outs, gathers and joins thus behave exactly as in service. Outputs are memoised within a request, so that selections
that agree upstream share them: all selections cost little more than running each variant once.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from jellybean.documents import SINGLE_ANSWER
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.refusals import refusal
from jellybean.profiler.workload import Array, Inputs, Model, Selection, Workload
from jellybean_agent import (
    CPU,
    GATEWAY,
    AgentError,
    Brain,
    Device,
    EdgeMessage,
    Executor,
    FanOutPath,
    Instruction,
    OpenSession,
    RequestFailed,
    RunOperator,
    SendMessage,
    WorkLimit,
    initial_state,
    open_in_process,
    trial_process,
)
from jellybean_solver import Edge, EdgeKind, OutOfTimeError, work_limit

_WORKER = "profiler"
KEPT_INPUTS = 64  # sample inputs kept per operator: a varied sample that fits into memory


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Outputs of one run by downstream operator, with the interface that the agent's `Brain` expects."""

    by_downstream: Mapping[str, Array]

    def rows(self, downstream: str) -> int:
        return int(self.by_downstream[downstream].shape[0])

    def take(self, downstream: str, row: int | None) -> Array:
        array = self.by_downstream[downstream]
        return array if row is None else array[row : row + 1]


@dataclass
class Traffic:
    """Totals by (operator, variant, downstream): number of messages, their bytes, and the runs that produced them.

    `fan_outs`: by the same key, for fan-outs only: number of output rows -> number of runs with so many rows.
    """

    messages: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    message_bytes: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    runs: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    fan_outs: dict[tuple[str, str, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, model: Model, downstream: str, array: Array, *, fans_out: bool) -> None:
        """Count the output of one run: one message, or one per row if it fans out."""
        key = (model.operator, model.variant, downstream)
        self.runs[key] += 1
        self.messages[key] += array.shape[0] if fans_out else 1
        if fans_out:
            self.fan_outs[key][int(array.shape[0])] += 1
        self.message_bytes[key] += array.nbytes


class Flow:
    """Answers held-out requests under any selection; collects traffic and sample inputs."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._executors: dict[tuple[str, str], Executor] = {}
        self._request = -1
        self._memo: dict[tuple[tuple[str, ...], FanOutPath], Mapping[str, Array]] = {}
        self.traffic = Traffic()
        self._first = {step.name: step.models[0].variant for step in workload.steps}
        self.inputs: dict[str, list[Inputs]] = defaultdict(list)  # operator -> sample of its inputs, by first variants
        self.input_rows: dict[str, list[int]] = defaultdict(list)  # operator -> the request of each sample input
        self._states: dict[tuple[tuple[str, ...], int], tuple[Array, ...]] = {}  # by variants, after a request
        self._inputs_seen: Counter[str] = Counter()  # operator -> number of runs from which the sample is drawn
        self._random = random.Random(0)

    def answer(self, request: int, selection: Selection) -> Mapping[str, Array]:
        """Sink -> its answer to the held-out request with this index.

        The answer of a sink below a fan-out is that of all child requests, concatenated along axis 0. OutOfTimeError at
        the time limit of the work.
        """
        for earlier in self._without_state(request, selection):
            self._answer(earlier, selection)
        return self._answer(request, selection)

    def _without_state(self, request: int, selection: Selection) -> list[int]:
        """The requests before this one in its stream, in order, from the first whose state is not known yet."""
        keys = [self._choice(name, selection) for name in self._workload.stateful]
        found: list[int] = []
        before = self._workload.request_before.get(request)
        while keys and before is not None and any((key, before) not in self._states for key in keys):
            found.append(before)
            before = self._workload.request_before.get(before)
        return found[::-1]

    def _choice(self, operator: str, selection: Selection) -> tuple[str, ...]:
        """The operator and the variants that its output depends on."""
        return (operator, *(selection[name] for name in self._workload.ancestors[operator]))

    def _answer(self, request: int, selection: Selection) -> Mapping[str, Array]:
        if request != self._request:
            self._request = request
            self._memo.clear()
        workload = self._workload
        brain = Brain(_WORKER, workload.wiring, [dict.fromkeys(workload.wiring, _WORKER)])
        todo: deque[Instruction] = deque()
        for edge in workload.edges:
            for path, payload in self._source_messages(edge, request):
                message = EdgeMessage("request", 0, edge.upstream, edge.downstream, path, payload)
                todo.extend(brain.received(message))
        answers: dict[str, dict[FanOutPath, Array | None]] = {sink: {} for sink in workload.sinks}
        while todo:
            if work_limit().left() == 0.0:
                raise self._out_of_time()
            match todo.popleft():
                case RunOperator() as run:
                    todo.extend(brain.completed(run.run, [_Outputs(self._outputs(run, selection))]))
                case SendMessage(_, message):
                    answers[message.upstream][message.path] = message.payload
                case RequestFailed() as failed:
                    raise ProfileError(f"operator {failed.operator}, row {request}: {failed.reason}")
        return {sink: _joined(found) for sink, found in answers.items()}

    def _source_messages(self, edge: Edge, request: int) -> list[tuple[FanOutPath, Array | None]]:
        """(fan-out path, tensor) of each message that a source sends over `edge` for one request.

        Empty if the upstream of the edge is an operator.
        """
        if edge.upstream not in self._workload.requests:
            return []
        tensor = self._workload.requests[edge.upstream][request : request + 1]
        if edge.kind is not EdgeKind.FAN_OUT:
            return [((), tensor)]
        return [(((row, len(tensor)),), tensor[row : row + 1]) for row in range(len(tensor))]

    def _outputs(self, run: RunOperator, selection: Selection) -> Mapping[str, Array]:
        choice = self._choice(run.operator, selection)
        key = (choice, run.items[0].path)
        if key not in self._memo:
            model = self._workload.step_by_name[run.operator].model(selection[run.operator])
            self._memo[key] = self._execute(run, model, choice)
        return self._memo[key]

    def _execute(self, run: RunOperator, model: Model, choice: tuple[str, ...]) -> Mapping[str, Array]:
        workload, (item,) = self._workload, run.items
        inputs = (*item.inputs, *self._state_before(model, choice))
        try:
            result = self.executor(model).run(inputs)
        except AgentError as error:
            raise refusal(workload, self.executor(model), model, inputs, self._request, error) from error
        if state := workload.step_by_name[model.operator].state:
            self._states[choice, self._request] = tuple(result.outputs[name] for name in state.values())
        if choice == self._choice(run.operator, self._first):
            self._keep(run.operator, inputs)
        found: dict[str, Array] = {}
        for edge in workload.edges:
            if edge.upstream == model.operator:
                found[edge.downstream] = _output(model, edge, result.outputs)
                self.traffic.add(model, edge.downstream, found[edge.downstream], fans_out=edge.kind is EdgeKind.FAN_OUT)
        if not found:
            found[GATEWAY] = _answer(model, result.outputs)
            self.traffic.add(model, GATEWAY, found[GATEWAY], fans_out=False)
        return found

    def _state_before(self, model: Model, choice: tuple[str, ...]) -> tuple[Array, ...]:
        """The state of the request's stream before it: of the request before, or zeros; none without a state."""
        state = self._workload.step_by_name[model.operator].state
        before = self._workload.request_before.get(self._request)
        if before is not None and state:
            return self._states[choice, before]
        return initial_state(self.executor(model).inputs[-len(state) :] if state else ())

    def _keep(self, operator: str, inputs: Inputs) -> None:
        """Keep a uniform sample of all inputs (reservoir sampling), as the children of one request are alike."""
        kept = self.inputs[operator]
        self._inputs_seen[operator] += 1
        if len(kept) < KEPT_INPUTS:
            kept.append(inputs)
            self.input_rows[operator].append(self._request)
        elif (place := self._random.randrange(self._inputs_seen[operator])) < KEPT_INPUTS:
            kept[place] = inputs
            self.input_rows[operator][place] = self._request

    def executor(self, model: Model) -> Executor:
        """The executor of a model, loaded once: in a process of its own, which the model may crash on these inputs."""
        key = (model.operator, model.variant)
        if key not in self._executors:
            self._executors[key] = load_tried(self._workload, model, self._out_of_time)
        return self._executors[key]

    def _out_of_time(self) -> OutOfTimeError:
        return OutOfTimeError(f"the time limit ended the measurements at row {self._request} of the held-out inputs")


def load(
    workload: Workload, model: Model, device: Device = CPU, *, open_session: OpenSession = open_in_process
) -> Executor:
    """The executor of a model on a device. ProfileError when it cannot be loaded."""
    try:
        return Executor(*model.code, workload.input_names(model), device=device, open_session=open_session)
    except AgentError as error:
        raise ProfileError(f"operator {model.operator}, variant {model.variant}: {error}") from error


def load_tried(workload: Workload, model: Model, out_of_time: Callable[[], OutOfTimeError]) -> Executor:
    """The executor of a model on the CPU, which runs a file in a process of its own: it may crash, or never end.

    `out_of_time`: the error of a load or run that the time limit of the work ends.
    """
    limit = WorkLimit(lambda: work_limit().left(), out_of_time)
    open_session = open_in_process if model.step is not None else partial(trial_process().open, work=limit)
    return load(workload, model, open_session=open_session)


def _output(model: Model, edge: Edge, outputs: Mapping[str, Array]) -> Array:
    name = model.sent(edge.output, outputs)
    if name not in outputs:
        raise ProfileError(
            f"operator {model.operator}, variant {model.variant}: the model has no output {name!r} for "
            f"{edge.downstream}; it has {', '.join(outputs)}"
        )
    array = outputs[name]
    if edge.kind is EdgeKind.FAN_OUT and array.ndim == 0:
        raise ProfileError(f"operator {model.operator}, variant {model.variant}: output {name} has no rows to fan out")
    return array


def _answer(model: Model, outputs: Mapping[str, Array]) -> Array:
    """The output that answers. ProfileError if it is a single number, which has no row for its request."""
    name = model.sent(None, outputs)
    named = f"operator {model.operator}, variant {model.variant}"
    if name not in outputs:
        raise ProfileError(f"{named}: the model has no output {name!r}; it has {', '.join(outputs)}")
    if outputs[name].ndim == 0:
        raise ProfileError(f"{named}: output {name} is {SINGLE_ANSWER}")
    return outputs[name]


def _joined(found: Mapping[FanOutPath, Array | None]) -> Array:
    """The answers of all child requests, concatenated in order; an empty tensor if there are none."""
    rows = [payload for _, payload in sorted(found.items(), key=lambda item: item[0]) if payload is not None]
    return np.concatenate(rows) if rows else np.zeros((0,))
