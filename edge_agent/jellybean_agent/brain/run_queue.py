"""The queues of work items, one per operator, and the choice of the next batch to run.

First come, first served over all operators. While many items are queued, operators take turns by their planned load
(fair queueing), so that one overloaded operator does not delay the others. Operators of several workflows always do: a
workflow's requests do not wait for those that another has too many of. A batch has items of one operator, at most
as many as its batch size; an operator with a batch delay waits at most that long for a full batch. Retried items of a
failed batch, and direct calls, are not batched with pipeline items.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from jellybean_agent.brain.fair_turns import FairTurns
from jellybean_agent.brain.messages import DIRECT_CALL_ROUTE, Instruction, RequestExpired, WakeAt, WorkItem
from jellybean_agent.brain.request_state import RequestState

FAIR_QUEUEING_FROM = 32  # number of queued items from which operators take turns


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How items are batched and ordered, by operator.

    `batch_sizes`: most items per run; default 1. `delays`: longest seconds that the first item of a batch waits for
    others; default 0. `shares`: planned fraction of the worker's time, for fair queueing, which applies from
    `fair_queueing_from` queued items on; below, items are served in order of arrival. `workflows`: the workflow of each
    operator, if there are several: these take turns from the first item on.
    """

    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    delays: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    fair_queueing_from: int = FAIR_QUEUEING_FROM
    workflows: Mapping[str, str] = field(default_factory=dict)

    @property
    def workflow_shares(self) -> dict[str, float]:
        """Workflow -> planned fraction of the worker's time."""
        found: dict[str, float] = dict.fromkeys(self.workflows.values(), 0.0)
        for operator, workflow in self.workflows.items():
            found[workflow] += self.shares.get(operator, 0.0)
        return found


class RunQueue:
    """The queued items of one worker.

    `requests`: the requests in flight, with their deadlines. `drop`: drops a request with all of its items. Times are
    by the clock of the brain's events. `direct_call_batches`: operator -> most direct calls in one run; may change at
    any time.
    """

    def __init__(
        self,
        operators: Iterable[str],
        policy: BatchPolicy,
        requests: Mapping[str, RequestState],
        drop: Callable[[str], None],
    ) -> None:
        self._batch_sizes, self._delays = policy.batch_sizes, policy.delays
        self._fair_from = policy.fair_queueing_from
        self._workflows = policy.workflows
        self._turns = _turns_by_workflow(policy)  # of operators
        self._workflow_turns = FairTurns(policy.workflow_shares)
        self._requests, self._drop = requests, drop
        # Invariant: each queue is in ascending order of item numbers, so items of a failed batch come first.
        self._queues: dict[str, OrderedDict[int, WorkItem]] = {operator: OrderedDict() for operator in operators}
        self._unbatched: set[int] = set()  # numbers of items that are not batched with pipeline items
        self._retried: set[int] = set()  # those of `_unbatched` that were in a failed batch
        self._ready_since: dict[int, float] = {}  # item of an operator with a delay -> when it was queued
        self._wake_at: float | None = None  # time of the pending WakeAt
        self.direct_call_batches: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def length_of(self, workflow: str) -> int:
        """Number of queued items of a workflow, of several."""
        return sum(len(queue) for operator, queue in self._queues.items() if self._workflows.get(operator) == workflow)

    def lengths(self) -> dict[str, int]:
        """Operator -> number of its queued items."""
        return {operator: len(queue) for operator, queue in self._queues.items()}

    def add(self, operator: str, item: WorkItem, state: RequestState, now: float) -> None:
        """Append an item to its operator's queue."""
        self._queues[operator][item.number] = item
        if operator in self._delays:
            self._ready_since[item.number] = now
        if item.route == DIRECT_CALL_ROUTE:
            self._unbatched.add(item.number)
        state.queued.add((operator, item.number))

    def retry(self, operator: str, item: WorkItem, state: RequestState) -> None:
        """Put an item of a failed batch at the front of its queue; it will run alone."""
        queue = self._queues[operator]
        queue[item.number] = item
        queue.move_to_end(item.number, last=False)
        self._unbatched.add(item.number)
        self._retried.add(item.number)
        state.queued.add((operator, item.number))

    def remove(self, operator: str, number: int) -> WorkItem:
        """Remove and return an item."""
        item = self._queues[operator].pop(number)
        self._unbatched.discard(number)
        self._retried.discard(number)
        self._ready_since.pop(number, None)
        return item

    def woken(self) -> None:
        """The time of the pending WakeAt has come."""
        self._wake_at = None

    def next_batch(self, now: float, out: list[Instruction]) -> tuple[str, list[WorkItem]] | None:
        """Remove and return (operator, items) of the next run; None if no item is due yet.

        Appends RequestExpired and WakeAt instructions to `out`.
        """
        self._drop_expired(self._queues, out, now)
        heads = sorted([(next(iter(queue)), operator) for operator, queue in self._queues.items() if queue])
        if self._delays:
            heads = self._due_heads(heads, out, now)
        if not heads:
            if not len(self):
                self._workflow_turns.reset()
            return None
        first, operator = self._next_turn(heads)
        queue = self._queues[operator]
        items: list[WorkItem] = []
        if first in self._unbatched:
            next_other = min((number for number, other in heads if other != operator), default=math.inf)
            items = self._take_unbatched(operator, next_other)
        else:
            size = self._batch_sizes.get(operator, 1)
            while queue and len(items) < size and (not items or next(iter(queue)) not in self._unbatched):
                items.append(queue.popitem(last=False)[1])
                self._drop_expired((operator,), out, now)
        for item in items:
            self._requests[item.request].queued.remove((operator, item.number))
            self._ready_since.pop(item.number, None)
        return operator, items

    def charge(self, operator: str, run_time: float) -> None:
        """Count a finished run, which took `run_time`, for the next turns."""
        workflow = self._workflows.get(operator, "")
        if (turns := self._turns.get(workflow)) is not None:
            turns.charge(operator, run_time)
        if self._workflows:
            self._workflow_turns.charge(workflow, run_time)

    def _next_turn(self, heads: list[tuple[int, str]]) -> tuple[int, str]:
        """Choose from `heads`, the (item number, operator) at the front of each queue, whose turn it is.

        The oldest item, or, while many items are queued, that of the operator whose turn it is; of several workflows,
        among those of the workflow whose turn it is.
        """
        queued, workflow = len(self), ""
        if self._workflows:
            workflow = self._next_workflow(heads)
            heads = [head for head in heads if self._workflows[head[1]] == workflow]
            queued = self.length_of(workflow)
        turns = self._turns.get(workflow)
        if turns is None:
            return heads[0]
        if len(heads) == 1 or queued < self._fair_from:
            turns.reset()
            return heads[0]
        return turns.choose(heads)

    def _next_workflow(self, heads: list[tuple[int, str]]) -> str:
        oldest: dict[str, int] = {}
        for number, operator in heads:
            oldest.setdefault(self._workflows[operator], number)
        return self._workflow_turns.choose([(number, workflow) for workflow, number in oldest.items()])[1]

    def _take_unbatched(self, operator: str, next_other: float) -> list[WorkItem]:
        """Remove and return the first item; if it is a direct call, with the direct calls directly behind it.

        `next_other`: number of the oldest item of any other operator; younger direct calls are not taken.
        """
        queue = self._queues[operator]
        size = self.direct_call_batches.get(operator, 1) if next(iter(queue)) not in self._retried else 1
        items: list[WorkItem] = []
        while queue and len(items) < size:
            number, item = next(iter(queue.items()))
            if items and (item.route != DIRECT_CALL_ROUTE or number in self._retried or number > next_other):
                break
            del queue[number]
            items.append(item)
            self._unbatched.discard(number)
            self._retried.discard(number)
            if item.route != DIRECT_CALL_ROUTE:
                break
        return items

    def _due_heads(self, heads: list[tuple[int, str]], out: list[Instruction], now: float) -> list[tuple[int, str]]:
        """The heads whose batch is full or whose batch delay is over. If there are none, appends a WakeAt to `out`."""
        due_at = {head: self._due_at(*head) for head in heads}
        due = [head for head in heads if due_at[head] <= now]
        if heads and not due and self._wake_at != (first := min(due_at.values())):
            self._wake_at = first
            out.append(WakeAt(first))
        return due

    def _due_at(self, number: int, operator: str) -> float:
        """Time at which the first item of a queue stops waiting for others to share its batch."""
        if number in self._unbatched or len(self._queues[operator]) >= self._batch_sizes.get(operator, 1):
            return -math.inf
        since = self._ready_since.get(number)
        return -math.inf if since is None else since + self._delays[operator]

    def _drop_expired(self, operators: Iterable[str], out: list[Instruction], now: float) -> None:
        """Drop requests until the first item of each of these operators' queues is within its deadline."""
        for operator in operators:
            queue = self._queues[operator]
            while queue and self._requests[(request := next(iter(queue.values())).request)].until <= now:
                self._drop(request)
                out.append(RequestExpired(request, operator))


def _turns_by_workflow(policy: BatchPolicy) -> dict[str, FairTurns]:
    """Workflow (empty if there is only one) -> turns of its operators, if a load was planned for any."""
    shares: dict[str, dict[str, float]] = {}
    for operator, share in policy.shares.items():
        shares.setdefault(policy.workflows.get(operator, ""), {})[operator] = share
    return {workflow: FairTurns(found) for workflow, found in shares.items() if any(found.values())}
