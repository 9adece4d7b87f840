"""The Open Inference Protocol over HTTP on the gateway: the service that gRPC offers, with JSON bodies.

Off by default (`jellybean up --http-port`). With certificates it is HTTPS with mutual TLS and the same access policy as
gRPC. Without, it listens on the loopback and checks the Host header, which protects against DNS rebinding by web pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from jellybean.serving.http.bodies import read_body
from jellybean.serving.http.calls import CALL_BYTES, CURRENT_CALL, HttpCall, RefusalError
from jellybean.serving.http.connections import HttpConnection, HttpPort
from jellybean.serving.http.inference_json import (
    MAX_JSON_BYTES,
    bytes_behind,
    json_too_large,
    parse_request,
    plain,
    write_json,
    write_response,
)
from jellybean.serving.http.label_route import Label, add_label_route
from jellybean_agent import (
    INFERENCE_SERVICE_NAME,
    MAX_MESSAGE_BYTES,
    PORT_LIMITS,
    AgentError,
    InferenceService,
    InvalidInputError,
    ListeningPort,
    PlanViewError,
    Policy,
    PortLimits,
    StepTurns,
    Transport,
    about,
    at_once,
    check_caller,
    describe_error,
    is_loopback,
    listening_sockets,
    log_fields,
    log_refusal,
    remember_caller,
    status_of,
)
from jellybean_protos.addresses import join_address
from jellybean_protos.inference.v2 import inference_pb2 as pb

LOG = logging.getLogger("jellybean.gateway")
JSON_LENGTH = "Inference-Header-Content-Length"
# Of a body that was refused before all of it came: reading more takes longer than another TLS handshake, and a client
# that is refused in an overload should not have to make one.
_READ_ANYWAY_BYTES = 2**20
_LINGERING_S = 2.0  # from an answer before the end of the body to the end of the connection, for a client that sends on
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_PORT = re.compile(r":[0-9]*\Z")  # in a Host header
_HTTP2_PREFACE = "PRI"  # how a connection of gRPC begins
_MAX_REASON = 200  # characters of aiohttp's reason in the log
_MAX_FIELDS_BYTES = 2**16  # of a JSON body without tensors
_AT_ONCE_BYTES = 2**14  # of tensors and JSON that are converted without taking turns
_SENT_BYTES = 2**18  # of an answer that are written at once
_ACCEPTED_AT_ONCE = 4  # connections that asyncio accepts in one turn, before the port's limits are applied
_ACCEPT_TURNS = 3  # of the loop, in which what was accepted last is a connection
_BACKLOG = 1024
_READ_BYTES = 2**14  # of a body that aiohttp keeps before it stops reading, twice as many
_HEALTH = "/v2/health/"
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve_http(
    service: InferenceService,
    address: tuple[str, int],
    transport: Transport,
    policy: Policy,
    label: Label | None = None,
    *,
    traced: bool = False,
    limits: PortLimits = PORT_LIMITS[ListeningPort.HTTP],
) -> AsyncIterator[None]:
    """Serve on (host, port) in this context. PlanViewError when the port is taken or needs TLS.

    `label`: judges answers by labels that come later; None: there is no such route.
    """
    host, port = address
    at = transport.check(join_address(host, port))
    context = transport.http_context()
    if context is not None:
        limits = replace(limits, idle_s=min(limits.idle_s, transport.renew_s))
    guard = _Guard(policy)
    app = application(service, guard)
    if label is not None:
        add_label_route(app, guard, service, label)
    if context is None:
        app.middlewares.insert(0, web.middleware(_check_host_header))
    if traced:
        app.middlewares.append(web.middleware(_read_trace_headers))
    http_port = HttpPort(limits, transport.admission, context)
    app.middlewares.insert(0, web.middleware(_admitting(http_port)))
    if context is not None:
        app.on_response_prepare.append(partial(_end_old, http_port, transport.renew_s))
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        keepalive_timeout=limits.idle_s,
        lingering_time=_LINGERING_S,
        logger=_server_logger(),
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
    )
    await runner.setup()
    try:
        http_port.use_handlers(runner.server)
        listening = await _listen(http_port, host, port)
    except PlanViewError:
        await runner.cleanup()
        raise
    except OSError as error:
        await runner.cleanup()
        url = f"{'http' if context is None else 'https'}://{at}"
        raise PlanViewError(f"cannot listen on {url}: {describe_error(error)}") from error
    try:
        yield
    finally:
        await _close(listening)
        http_port.close()
        await runner.cleanup()


async def _listen(port: HttpPort, host: str, number: int) -> list[asyncio.Server]:
    loop, servers = asyncio.get_running_loop(), []
    for listening in listening_sockets(host, number, _BACKLOG):
        servers.append(await loop.create_server(port.accept, sock=listening, backlog=_ACCEPTED_AT_ONCE))
        listening.listen(_BACKLOG)  # more may wait
    return servers


async def _close(servers: list[asyncio.Server]) -> None:
    """Stop listening, once nothing is being accepted: asyncio would leave such sockets open."""
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


def _admitting(port: HttpPort) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Counts each request, and refuses it where there is no room; health is asked by everybody."""

    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = port.connections.get(request.protocol)
        if connection is None:
            return _refused(RefusalError(503, "the connection is closed", closes=True))
        answer = await _admitted(connection, request, handler)
        if not (request.content.is_eof() or _is_small(request)):
            answer.force_close()
            connection.discard()
        return answer

    async def _admitted(connection: HttpConnection, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            await connection.await_turn()
            call = connection.begin_call(is_health=request.path.startswith(_HEALTH))
        except RefusalError as error:
            return _refused(error)
        try:
            CURRENT_CALL.set(call)
            return await handler(request)
        finally:
            call.end()

    return admit


def _is_small(request: web.Request) -> bool:
    """True if the rest of a body takes little to read, so that its connection can go on behind it; never in chunks."""
    return request.content_length is not None and request.content_length <= _READ_ANYWAY_BYTES


async def _end_old(port: HttpPort, age_s: float, request: web.Request, response: web.StreamResponse) -> None:
    """Close a TLS connection older than `age_s` after this answer, so that replaced certificates take effect."""
    connection = port.connections.get(request.protocol)
    if connection is not None and connection.age_s > age_s:
        response.force_close()
        response.headers["Connection"] = "close"


def _server_logger() -> logging.Logger:
    """The logger of aiohttp's server, which reports bytes that are no HTTP request in one line, without a traceback."""
    logger = logging.getLogger("jellybean.http")
    logger.addFilter(_shorten_protocol_error)
    return logger


def _shorten_protocol_error(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        caller = record.args[0] if isinstance(record.args, tuple) and record.args else "a caller"
        reason = " ".join(error.message.split())[:_MAX_REASON]
        is_grpc = _HTTP2_PREFACE in reason
        why = "it speaks gRPC, whose port is --port" if is_grpc else f"no HTTP/1.1 request: {reason}"
        record.msg, record.args, record.exc_info = "refused: a call of %s at --http-port: %s", (caller, why), None
    return True


def application(service: InferenceService, guard: _Guard) -> web.Application:
    """The protocol's routes."""
    handlers = _Handlers(service)
    app = web.Application(middlewares=[web.middleware(_answer_errors)])

    def add(kind: str, path: str, method: str, handler: Handler) -> None:
        route = app.router.add_get if kind == "GET" else app.router.add_post
        route(path, partial(guard.checked, f"/{INFERENCE_SERVICE_NAME}/{method}", handler))

    add("GET", "/v2", "ServerMetadata", handlers.server)
    add("GET", "/v2/health/live", "ServerLive", handlers.live)
    add("GET", "/v2/health/ready", "ServerReady", handlers.ready)
    add("GET", "/v2/models/stats", "ModelStatistics", handlers.statistics)
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        add("GET", path, "ModelMetadata", handlers.metadata)
        add("GET", f"{path}/ready", "ModelReady", handlers.model_ready)
        add("GET", f"{path}/config", "ModelConfig", handlers.config)
        add("GET", f"{path}/stats", "ModelStatistics", handlers.statistics)
        add("POST", f"{path}/infer", "ModelInfer", handlers.infer)
    add("POST", "/v2/repository/index", "RepositoryIndex", handlers.index)
    for what in ("Load", "Unload"):
        path = f"/v2/repository/models/{{model}}/{what.lower()}"
        add("POST", path, f"RepositoryModel{what}", handlers.refuse_loading)
    return app


class _Guard:
    """Checks the access policy before a handler is called."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def checked(self, method: str, handler: Handler, request: web.Request) -> web.StreamResponse:
        caller = CURRENT_CALL.get().caller
        check_caller(self._policy, method, caller)
        remember_caller(caller)
        return await handler(request)


async def _check_host_header(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = _PORT.sub("", request.host).lower().removesuffix(".")  # names are the same in any case, and with their root
    if not is_loopback(host):
        reason = f"host {host[:60]!r} is not this machine: ask {' or '.join(_HOSTS)}"
        LOG.info("refused: %s", reason, extra=log_fields(status=403) | about(str(request.remote)))
        return _error(403, reason)
    return await handler(request)


async def _read_trace_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep the client's W3C trace headers for the request's span."""
    from jellybean_agent import CALL_TRACE_HEADERS, TRACE_HEADER_NAMES

    CALL_TRACE_HEADERS.set({key: request.headers[key] for key in TRACE_HEADER_NAMES if key in request.headers})
    return await handler(request)


async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error with JSON and a reason."""
    try:
        return await handler(request)
    except AgentError as error:
        log_refusal(error)
        return _error(_STATUS.get(status_of(error), 500), str(error))
    except RefusalError as error:
        return _refused(error)
    except UnicodeEncodeError:
        refusal = 400, "the request holds text that is not valid Unicode (a lone surrogate)"
    except web.HTTPException as error:
        refusal = error.status, f"{request.method} {request.path[:200]}: {error.reason}; see /v2"
    except Exception:  # a boundary: the call fails, the gateway goes on
        LOG.exception("an HTTP request failed unexpectedly")
        refusal = 500, "failed unexpectedly: the gateway's log says why"
    LOG.info("refused: %s", refusal[1], extra=log_fields(status=refusal[0]) | about(str(request.remote)))
    return _error(*refusal)


def _refused(error: RefusalError) -> web.Response:
    LOG.info("refused: %s", error, extra=log_fields(status=error.status))
    response = _error(error.status, str(error), error.headers)
    if error.closes:
        response.force_close()
    return response


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason[:2000]}, status=status, headers=headers)


class _Handlers:
    """One handler per kind of path."""

    def __init__(self, service: InferenceService) -> None:
        self._service, self._turns = service, StepTurns()

    async def live(self, _request: web.Request) -> web.Response:
        return web.json_response(plain(await self._service.server_live(pb.ServerLiveRequest())))

    async def ready(self, _request: web.Request) -> web.Response:
        found = plain(await self._service.server_ready(pb.ServerReadyRequest()))
        return web.json_response(found, status=200 if found["ready"] else 400)  # 4xx by the protocol

    async def server(self, _request: web.Request) -> web.Response:
        return web.json_response(plain(await self._service.server_metadata(pb.ServerMetadataRequest())))

    async def model_ready(self, request: web.Request) -> web.Response:
        found = plain(await self._service.model_ready(pb.ModelReadyRequest(**_named(request))))
        return web.json_response({"name": request.match_info["model"], **found}, status=200 if found["ready"] else 400)

    async def metadata(self, request: web.Request) -> web.Response:
        return web.json_response(plain(await self._service.model_metadata(pb.ModelMetadataRequest(**_named(request)))))

    async def config(self, request: web.Request) -> web.Response:
        found = plain(await self._service.model_config(pb.ModelConfigRequest(**_named(request))))
        return web.json_response(found["config"])

    async def statistics(self, request: web.Request) -> web.Response:
        return web.json_response(
            plain(await self._service.model_statistics(pb.ModelStatisticsRequest(**_named(request))))
        )

    async def index(self, request: web.Request) -> web.Response:
        ready = (await _object(request)).get("ready", False) is True
        found = await self._service.repository_index(pb.RepositoryIndexRequest(ready=ready))
        return web.json_response(plain(found)["models"])

    async def refuse_loading(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        return web.json_response(
            plain(await self._service.refuse_loading(pb.RepositoryModelLoadRequest(model_name=name)))
        )

    async def infer(self, request: web.Request) -> web.StreamResponse:
        call = CURRENT_CALL.get()
        asked, binary = await self._read(request, call)
        asked.model_name, asked.model_version = request.match_info["model"], request.match_info.get("version", "")
        answering = self._service.model_infer(asked)
        del asked  # so that it does not outlive its answer
        return await self._answer(request, call, await answering, binary)

    async def _answer(
        self, request: web.Request, call: HttpCall, response: pb.ModelInferResponse, binary: frozenset[str] | bool
    ) -> web.StreamResponse:
        size = response.ByteSize()
        call.hold_instead(CALL_BYTES + size)
        if size <= _AT_ONCE_BYTES:
            body, json_bytes = write_response(response, binary)
            return web.Response(body=body, headers=_headers(json_bytes))
        pieces, behind = (
            self._turns.pieces(call.caller.client, write_json(response, binary)),
            bytes_behind(response, binary),
        )
        del response
        return await _send(request, call, pieces, behind)

    async def _read(self, request: web.Request, call: HttpCall) -> tuple[pb.ModelInferRequest, frozenset[str] | bool]:
        json_bytes = _json_bytes(request)
        limits = (MAX_JSON_BYTES, json_too_large) if json_bytes is None else (MAX_MESSAGE_BYTES, _too_large)
        body = await read_body(request, call, *limits)
        text_bytes = len(body) if json_bytes is None else min(json_bytes, len(body))
        call.hold(len(body) - text_bytes)  # of tensors, which the message has too
        steps = parse_request(body, json_bytes, call.hold)
        del body  # `steps` has it
        if text_bytes <= _AT_ONCE_BYTES:
            return at_once(steps)
        found = await self._turns.run(call.caller.client, steps)
        call.give(text_bytes)  # the tensors are counted, and the text is not kept
        return found


async def _send(
    request: web.Request, call: HttpCall, pieces: AsyncIterator[bytes], behind: list[bytes]
) -> web.StreamResponse:
    """Send an answer as it is written. With bytes behind the JSON, whose size comes first, the JSON is held."""
    text = bytearray()
    async for piece in pieces:
        if behind:
            call.hold(len(piece))
        text += piece
        if text and not behind:
            break
    answer = web.StreamResponse(headers=_headers(len(text) if behind else None))
    if behind:
        answer.content_length = len(text) + sum(map(len, behind))
    try:
        await answer.prepare(request)
        for part in (memoryview(text), *(memoryview(raw) for raw in behind)):
            for at in range(0, len(part), _SENT_BYTES):
                await answer.write(part[at : at + _SENT_BYTES])
        async for piece in pieces:
            await answer.write(piece)
        await answer.write_eof()
    except ConnectionError:  # the client has gone: aiohttp closes its connection
        pass
    return answer


def _headers(json_bytes: int | None) -> dict[str, str]:
    """The headers of an answer. `json_bytes`: size of its JSON part; None when all of it is JSON."""
    if json_bytes is None:
        return {"Content-Type": "application/json"}
    return {"Content-Type": "application/octet-stream", JSON_LENGTH: str(json_bytes)}


def _too_large(size: int) -> str:
    return f"the body has {size} bytes, above the limit of {MAX_MESSAGE_BYTES}"


def _named(request: web.Request) -> dict[str, Any]:
    return {"name": request.match_info.get("model", ""), "version": request.match_info.get("version", "")}


def _json_bytes(request: web.Request) -> int | None:
    stated = set(request.headers.getall(JSON_LENGTH, ()))
    if len(stated) > 1:
        raise InvalidInputError(f"{JSON_LENGTH} is given twice, with other numbers: send it once")
    given = next(iter(stated), None)
    if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise InvalidInputError(f"{JSON_LENGTH} is {given[:40]!r}: a number of bytes is meant")
    return None if given is None else int(given)


async def _object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object."""
    body = await read_body(request, CURRENT_CALL.get(), _MAX_FIELDS_BYTES, _fields_too_large)
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InvalidInputError("a JSON object is meant")
    return found


def _fields_too_large(size: int) -> str:
    return f"the body has {size} bytes, above the limit of {_MAX_FIELDS_BYTES} for this call"
