"""Labels that come after the answers, over HTTP: `POST /v2/models/NAME/labels`, with the name of a workflow."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from jellybean.serving.http.bodies import read_body
from jellybean.serving.http.calls import CURRENT_CALL
from jellybean_agent import InferenceService, InvalidInputError
from jellybean_protos.gateway.v1 import ledger_pb2
from jellybean_protos.inference.v2 import inference_pb2

LABEL_METHOD = "/jellybean.gateway.v1.Ledger/Label"
MAX_BODY_BYTES = 2**20  # which the event loop parses in some ten milliseconds
_KEYS = frozenset({"id", "label", "client"})

Label = Callable[[ledger_pb2.LabelRequest, Any], Awaitable[ledger_pb2.LabelResponse]]  # labels, caller -> outcomes
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard(Protocol):
    """Checks the access policy before a handler is called."""

    async def checked(self, method: str, handler: Handler, request: web.Request) -> web.StreamResponse: ...


def add_label_route(app: web.Application, guard: Guard, service: InferenceService, label: Label) -> None:
    """Add the route. `label`: judges answers by labels, for the caller that the guard has let in."""

    async def labels(request: web.Request) -> web.Response:
        call = CURRENT_CALL.get()
        await service.model_ready(inference_pb2.ModelReadyRequest(name=request.match_info["model"]))
        wanted = read_labels(await read_body(request, call, MAX_BODY_BYTES, _too_large))
        wanted.workflow = request.match_info["model"]
        found = await label(wanted, call.caller)
        outcomes = [
            {"id": one.id, **({"verdict": was.verdict} if was.HasField("verdict") else {"problem": was.problem})}
            for one, was in zip(wanted.labels, found.outcomes, strict=True)
        ]
        verdicts = [was.verdict for was in found.outcomes if was.HasField("verdict")]
        return web.json_response({"labelled": len(verdicts), "right": math.fsum(verdicts), "outcomes": outcomes})

    app.router.add_post("/v2/models/{model}/labels", partial(guard.checked, LABEL_METHOD, labels))


def _too_large(size: int) -> str:
    return f"the body has {size} bytes, at most {MAX_BODY_BYTES} are taken: send fewer labels"


def read_labels(body: bytes) -> ledger_pb2.LabelRequest:
    """The labels of a body: `{"id": ..., "label": ...}`, or several in a list `labels`. Else InvalidInputError."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:200]}") from error
    items = given.get("labels", [given]) if isinstance(given, Mapping) else given
    if not isinstance(items, list):
        raise InvalidInputError('a JSON object {"id": ..., "label": ...} is meant, or {"labels": [...]} with several')
    return ledger_pb2.LabelRequest(labels=(_label(number, item) for number, item in enumerate(items)))


def _label(number: int, item: Any) -> ledger_pb2.RequestLabel:
    where = f"labels[{number}]"
    if not isinstance(item, Mapping) or not {"id", "label"} <= item.keys() <= _KEYS:
        raise InvalidInputError(f"{where}: an object with id and label is meant, and perhaps client")
    value, client = item["label"], item.get("client")
    if not isinstance(item["id"], str) or not isinstance(client, str | None):
        raise InvalidInputError(f"{where}: id and client are texts")
    if not isinstance(value, str | int | float | list):
        raise InvalidInputError(f"{where}: its label is a number, a list of numbers, or text")
    text = value if isinstance(value, str) else json.dumps(value)
    return ledger_pb2.RequestLabel(id=item["id"], label=text, client=client)
