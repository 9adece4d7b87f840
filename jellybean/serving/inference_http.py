"""The Open Inference Protocol over HTTP on the gateway, on loopback: the same service as over gRPC, other bytes.

Off unless asked for (`jellybean up --http-port`). Only requests that name this machine as their host are served: a web
page cannot reach the gateway by a name of its own that leads here.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web

from jellybean.serving.inference_json import plain, read_request, write_response
from jellybean_agent.errors import AgentError, InvalidInputError, PlanViewError, in_words, status_of
from jellybean_agent.inference.service import InferenceService, log_refusal
from jellybean_agent.logs import about
from jellybean_agent.tensors import MAX_MESSAGE_BYTES
from jellybean_protos.inference.v2 import inference_pb2 as pb

LOG = logging.getLogger("jellybean.gateway")
JSON_LENGTH = "Inference-Header-Content-Length"
_HOSTS = ("127.0.0.1", "localhost")
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve_http(service: InferenceService, port: int, *, traced: bool = False) -> AsyncIterator[None]:
    """Serve on 127.0.0.1:`port` meanwhile. PlanViewError when the port is taken."""
    app = application(service)
    if traced:
        app.middlewares.append(web.middleware(_take_trace))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        except OSError as error:
            raise PlanViewError(f"cannot listen on http://127.0.0.1:{port}: {in_words(error)}") from error
        yield
    finally:
        await runner.cleanup()


def application(service: InferenceService) -> web.Application:
    """The routes of the protocol."""
    face = _Face(service)
    app = web.Application(
        middlewares=[*map(web.middleware, (_only_this_machine, _answer_errors))], client_max_size=MAX_MESSAGE_BYTES
    )
    app.router.add_get("/v2", face.server)
    app.router.add_get("/v2/health/live", face.live)
    app.router.add_get("/v2/health/ready", face.ready)
    app.router.add_get("/v2/models/stats", face.statistics)
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        app.router.add_get(path, face.metadata)
        app.router.add_get(f"{path}/ready", face.model_ready)
        app.router.add_get(f"{path}/config", face.config)
        app.router.add_get(f"{path}/stats", face.statistics)
        app.router.add_post(f"{path}/infer", face.infer)
    app.router.add_post("/v2/repository/index", face.index)
    for what in ("load", "unload"):
        app.router.add_post(f"/v2/repository/models/{{model}}/{what}", face.keep_models)
    return app


async def _only_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = request.host.rpartition(":")[0] or request.host
    if host not in _HOSTS:
        reason = f"host {host[:60]!r} is not this machine: ask {' or '.join(_HOSTS)}"
        LOG.info("refused: %s", reason, extra=about(status=403))
        return _error(403, reason)
    return await handler(request)


async def _take_trace(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Remember what the client says of its span."""
    from jellybean_agent.spans import CARRIER, HEADERS

    CARRIER.set({key: request.headers[key] for key in HEADERS if key in request.headers})
    return await handler(request)


async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is JSON with a reason."""
    try:
        return await handler(request)
    except AgentError as error:
        log_refusal(error)
        return _error(_STATUS.get(status_of(error), 500), str(error))
    except UnicodeEncodeError:
        refusal = 400, "text in the request is no Unicode: half a character"
    except web.HTTPRequestEntityTooLarge:
        refusal = 413, f"the body is above the limit of {MAX_MESSAGE_BYTES} bytes"
    except web.HTTPException as error:
        refusal = error.status, f"{request.method} {request.path[:200]}: {error.reason}; see /v2"
    except Exception:  # the server's boundary: this call fails, the gateway goes on
        LOG.exception("an HTTP request failed unexpectedly")
        refusal = 500, "failed unexpectedly: the gateway's log says why"
    LOG.info("refused: %s", refusal[1], extra=about(status=refusal[0]))
    return _error(*refusal)


def _error(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason[:2000]}, status=status)


class _Face:
    """One handler for each kind of path."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def live(self, _request: web.Request) -> web.Response:
        return web.json_response(plain(await self._service.server_live(pb.ServerLiveRequest())))

    async def ready(self, _request: web.Request) -> web.Response:
        found = plain(await self._service.server_ready(pb.ServerReadyRequest()))
        return web.json_response(found, status=200 if found["ready"] else 400)  # 4xx: as the protocol has it

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

    async def keep_models(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        return web.json_response(plain(await self._service.keep_models(pb.RepositoryModelLoadRequest(model_name=name))))

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
    """The body as a JSON object; none is an empty one."""
    try:
        found = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InvalidInputError("a JSON object is meant")
    return found
