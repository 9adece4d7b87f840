"""The gRPC service about the gateway's ledger: questions of admins, and labels, of clients too.

Questions run in threads of their own, a few at a time, so that they delay neither requests nor what writes the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from jellybean.errors import InputError
from jellybean.ledger.errors import LedgerError
from jellybean.serving.gateway.accounting.serving_log import client_name
from jellybean_agent import (
    AgentError,
    ClientTurns,
    Role,
    SharedLimit,
    StatusError,
    caller_uri,
    parse_identity,
    status_of,
)
from jellybean_protos.gateway.v1 import ledger_pb2 as pb

if TYPE_CHECKING:
    from jellybean.serving.gateway.accounting.ledger_answers import LedgerAnswers

LOG = logging.getLogger("jellybean.gateway")
MAX_ANSWER_BYTES = 32 * 2**20
_AT_ONCE = 2  # questions that run, of different callers; SQLite has one writer, and the machine serves besides
_MOST, _RESERVED = 16, 2  # questions that run or wait; besides, for admins and the owner

Message = TypeVar("Message")


async def _nothing() -> None:
    """Writes nothing."""


class LabelledWorkflow(Protocol):
    """A workflow that is served, whose answers are labelled."""

    @property
    def name(self) -> str: ...

    async def write_answers(self) -> None:
        """Write the answers that were given since the last interval, so that labels find them."""
        ...


class LedgerService:
    """Methods of the service `Ledger`, of all workflows of the gateway. `answers`: None if it writes no ledger.

    `find`: the workflow of a name, empty: the only one, for a caller of this URI. StatusError if there is none.
    """

    def __init__(self, answers: LedgerAnswers | None, find: Callable[[str, str], LabelledWorkflow]) -> None:
        self._answers, self._find = answers, find
        self._threads = ThreadPoolExecutor(_AT_ONCE, "ledger-question")
        self._limit = SharedLimit(_MOST, _RESERVED)  # questions that run or wait, shared by callers
        self._turns = ClientTurns(_AT_ONCE)

    def close(self) -> None:
        """Wait for questions that run, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        if self._answers is not None:
            self._answers.close()

    async def Cost(self, request: pb.CostRequest, context: Any) -> pb.CostResponse:
        return await self._answer_or_abort(context, lambda answers: answers.cost(request))

    async def Timeline(self, request: pb.TimelineRequest, context: Any) -> pb.TimelineResponse:
        return await self._answer_or_abort(context, lambda answers: answers.timeline(request))

    async def ServedTime(self, request: pb.ServedTimeRequest, context: Any) -> pb.ServedTimeResponse:
        return await self._answer_or_abort(context, lambda answers: answers.served_time(request))

    async def Events(self, request: pb.EventsRequest, context: Any) -> pb.EventsResponse:
        return await self._answer_or_abort(context, lambda answers: answers.events(request))

    async def Accuracy(self, request: pb.AccuracyRequest, context: Any) -> pb.AccuracyResponse:
        await self._name_workflow(request, context)
        return await self._answer_or_abort(context, lambda answers: answers.accuracy(request))

    async def AccuracyTimeline(self, request: pb.AccuracyTimelineRequest, context: Any) -> pb.AccuracyTimelineResponse:
        await self._name_workflow(request, context)
        return await self._answer_or_abort(context, lambda answers: answers.accuracy_timeline(request))

    async def Audits(self, request: pb.AuditsRequest, context: Any) -> pb.AuditsResponse:
        await self._name_workflow(request, context)
        return await self._answer_or_abort(context, lambda answers: answers.audits(request))

    async def Counts(self, request: pb.CountsRequest, context: Any) -> pb.CountsResponse:
        return await self._answer_or_abort(context, lambda answers: answers.counts(request))

    async def Label(self, request: pb.LabelRequest, context: Any) -> pb.LabelResponse:
        try:
            return await self.label(request, context)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise

    async def label(self, request: pb.LabelRequest, caller: Any) -> pb.LabelResponse:
        """Judge answers by labels. `caller`: a call's context; a client labels its own requests only.

        StatusError if the caller may not label these, or if there is no answer. A client whose certificate is of one
        workflow labels answers of this one only.
        """
        _restrict(request, label_scope(caller))
        served = self._find(request.workflow, caller_uri(caller))
        request.workflow = served.name
        return await self._run_question(caller, lambda answers: answers.label(request), served.write_answers)

    async def _name_workflow(self, request: Any, context: Any) -> None:
        """Name the workflow that a question is about, where it names none: the only one. Abort if there are several."""
        try:
            request.workflow = request.workflow or self._find("", caller_uri(context)).name
        except StatusError as error:
            await context.abort(error.status, str(error))

    async def _answer_or_abort(self, context: Any, ask: Callable[[LedgerAnswers], Message]) -> Message:
        try:
            return await self._run_question(context, ask)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
            raise

    async def _run_question(
        self, caller: Any, ask: Callable[[LedgerAnswers], Message], prepare: Callable[[], Awaitable[None]] = _nothing
    ) -> Message:
        """The answer to a caller's question. StatusError if there is none, with the reason.

        `prepare`: what is done before. A caller's questions run one after another.
        """
        if self._answers is None:
            reason = "this gateway writes no ledger: it was started with `--ledger none`, or without a database"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, reason)
        scope = label_scope(caller)
        share = self._limit.share_of("owner" if scope is None else f"client {scope}")
        if not share.take(is_privileged=scope is None):
            held, own = self._limit.held + self._limit.reserved, share.held + share.reserved
            waiting = f"{held} questions about the ledger wait already, {own} of them yours"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{waiting}: ask again in a moment")
        try:
            await prepare()
            async with self._turns.turn(share.peer):
                answer = await asyncio.get_running_loop().run_in_executor(self._threads, ask, self._answers)
        except InputError as error:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except LedgerError as error:
            LOG.warning("a question about the ledger has no answer: %s", error)
            raise StatusError(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        finally:
            share.give()
        _check_size(answer)
        return answer


def _restrict(request: pb.LabelRequest, client: str | None) -> None:
    """Have the labels be for requests of one client, where `client` names one. StatusError if they name another."""
    if client is None:
        return
    for label in request.labels:
        if label.HasField("client") and label.client != client:
            caller = f"client {client}" if client else "a caller without a certificate"
            reason = f"{caller} may label its own requests, not those of {label.client[:60]!r}"
            raise StatusError(grpc.StatusCode.PERMISSION_DENIED, reason)
        label.client = client


def _check_size(message: Any) -> None:
    size = message.ByteSize()
    if size > MAX_ANSWER_BYTES:
        reason = (
            f"the answer has {size / 2**20:.0f} MiB, above the limit of {MAX_ANSWER_BYTES // 2**20} MiB: "
            "ask about a shorter time (--since, --until)"
        )
        raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


def label_scope(caller: Any) -> str | None:
    """The name under which a caller's requests are kept, if it may label only those; None: it may label all.

    The owner's socket and admins may label all. Callers without a certificate are one client, without a name.
    """
    if caller.peer().startswith("unix:"):
        return None
    uri = caller_uri(caller)
    identity = parse_identity(uri)
    return None if identity is not None and identity.role is Role.ADMIN else client_name(uri)
