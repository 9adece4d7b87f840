"""Has a gateway switch to another plan, whichever machine it runs on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from jellybean.serving.client import Client
from jellybean.serving.endpoint import Endpoint
from jellybean.serving.errors import LaunchError
from jellybean_agent import printable

_POLL_S = 0.05
_LATE_S = 5.0  # for the gateway's answer, after the time that its workers have


def replace_at(
    endpoint: Endpoint,
    document: Mapping[str, Any],
    addresses: Mapping[str, str],
    *,
    timeout_s: float,
    while_waiting: Callable[[], None],
    links: str = "",
) -> None:
    """Have a gateway switch to a plan once its workers are ready. LaunchError: it keeps the old plan.

    `addresses`: of workers whose address it does not know yet. `while_waiting` is called often; if it raises, the
    gateway stops waiting. `links`: file for the state of emulated links.
    """
    until_s = time.monotonic() + timeout_s + _LATE_S
    with Client.at(endpoint) as client:
        call = client.start_replacement(json.dumps(document), addresses, links, timeout_s)
        try:
            while not call.done():
                while_waiting()
                if time.monotonic() > until_s:
                    raise LaunchError(f"the gateway did not answer within {timeout_s:g} s; it keeps its plan")
                time.sleep(_POLL_S)
            call.result()
        except grpc.RpcError as error:
            raise LaunchError(f"the gateway keeps its plan: {printable(str(error.details()))}") from error
        finally:
            call.cancel()  # the gateway stops waiting for them
