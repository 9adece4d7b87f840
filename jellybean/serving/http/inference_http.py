"""The Open Inference Protocol over HTTP on the gateway: the service that gRPC offers, with JSON bodies.

Off by default (`jellybean up --http-port`). With certificates it is HTTPS with mutual TLS and the same access policy as
gRPC. Without, it listens on the loopback and checks the Host header, which protects against DNS rebinding by web pages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from jellybean.serving.http.caller import HttpCaller
from jellybean.serving.http.inference_json import plain, read_request, write_response
from jellybean.serving.http.label_route import Label, add_label_route
from jellybean_agent import (
    INFERENCE_SERVICE_NAME,
    MAX_MESSAGE_BYTES,
    AgentError,
    InferenceService,
    InvalidInputError,
    PlanViewError,
    Policy,
    TlsConnection,
    Transport,
    about,
    check_caller,
    describe_error,
    log_fields,
    log_refusal,
    remember_caller,
    status_of,
)
from jellybean_protos.inference.v2 import inference_pb2 as pb

LOG = logging.getLogger("jellybean.gateway")
JSON_LENGTH = "Inference-Header-Content-Length"
_HOSTS = ("127.0.0.1", "localhost")
_HTTP2_PREFACE = "PRI"  # how a connection of gRPC begins
_MAX_REASON = 200  # characters of aiohttp's reason in the log
_IDLE_S = 75.0  # keep-alive of a connection
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
) -> AsyncIterator[None]:
    """Serve on (host, port) in this context. PlanViewError when the port is taken or needs TLS.

    `label`: judges answers by labels that come later; None: there is no such route.
    """
    host, port = address
    transport.check(f"{host}:{port}")
    context = transport.http_context()
    guard = _Guard(policy, is_tls=context is not None)
    app = application(service, guard)
    if label is not None:
        add_label_route(app, guard, service, label)
    app.middlewares.insert(0, web.middleware(_check_host_header if context is None else _limit_age(transport.renew_s)))
    if traced:
        app.middlewares.append(web.middleware(_read_trace_headers))
    idle_s = _IDLE_S if context is None else min(_IDLE_S, transport.renew_s)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        keepalive_timeout=idle_s,
        logger=_server_logger(),
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host.strip("[]"), port, reuse_address=True, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            url = f"{'http' if context is None else 'https'}://{host}:{port}"
            raise PlanViewError(f"cannot listen on {url}: {describe_error(error)}") from error
        yield
    finally:
        await runner.cleanup()


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
    app = web.Application(middlewares=[web.middleware(_answer_errors)], client_max_size=MAX_MESSAGE_BYTES)

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

    def __init__(self, policy: Policy, *, is_tls: bool) -> None:
        self._policy, self._is_tls = policy, is_tls

    async def checked(self, method: str, handler: Handler, request: web.Request) -> web.StreamResponse:
        caller = HttpCaller(request, is_tls=self._is_tls)
        check_caller(self._policy, method, caller)
        remember_caller(caller)
        request["caller"] = caller
        return await handler(request)


def _limit_age(age_s: float) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Close connections older than `age_s` after an answer, so that replaced or removed certificates take effect."""

    async def end_old(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        if isinstance(tls, TlsConnection) and time.monotonic() - tls.began_s > age_s:
            response.force_close()
        return response

    return end_old


async def _check_host_header(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = request.host.rpartition(":")[0] or request.host
    if host not in _HOSTS:
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
    except UnicodeEncodeError:
        refusal = 400, "the request holds text that is not valid Unicode (a lone surrogate)"
    except web.HTTPRequestEntityTooLarge:
        refusal = 413, f"the body is above the limit of {MAX_MESSAGE_BYTES} bytes"
    except web.HTTPException as error:
        refusal = error.status, f"{request.method} {request.path[:200]}: {error.reason}; see /v2"
    except Exception:  # a boundary: the call fails, the gateway goes on
        LOG.exception("an HTTP request failed unexpectedly")
        refusal = 500, "failed unexpectedly: the gateway's log says why"
    LOG.info("refused: %s", refusal[1], extra=log_fields(status=refusal[0]) | about(str(request.remote)))
    return _error(*refusal)


def _error(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason[:2000]}, status=status)


class _Handlers:
    """One handler per kind of path."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

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

    async def infer(self, request: web.Request) -> web.Response:
        asked, binary = read_request(await request.read(), _json_bytes(request))
        asked.model_name, asked.model_version = request.match_info["model"], request.match_info.get("version", "")
        body, json_bytes = write_response(await self._service.model_infer(asked), binary)
        if json_bytes is None:
            return web.Response(body=body, content_type="application/json")
        headers = {JSON_LENGTH: str(json_bytes)}
        return web.Response(body=body, headers=headers, content_type="application/octet-stream")


def _named(request: web.Request) -> dict[str, Any]:
    return {"name": request.match_info.get("model", ""), "version": request.match_info.get("version", "")}


def _json_bytes(request: web.Request) -> int | None:
    given = request.headers.get(JSON_LENGTH)
    if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise InvalidInputError(f"{JSON_LENGTH} is {given[:40]!r}: a number of bytes is meant")
    return None if given is None else int(given)


async def _object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object."""
    try:
        found = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InvalidInputError("a JSON object is meant")
    return found
