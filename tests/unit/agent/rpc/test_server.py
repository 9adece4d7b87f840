"""The sockets of an RPC server whose start fails."""

from __future__ import annotations

import gc
import socket
from contextlib import closing
from typing import Any

from jellybean_agent import RpcServer


def not_called(*_: Any) -> Any:
    raise AssertionError


def test_a_server_that_is_dropped_before_it_is_started_closes_its_sockets() -> None:
    server = RpcServer(not_called, not_called)
    port = server.add_insecure_port("127.0.0.1:0")
    del server
    gc.collect()  # a ResourceWarning of an open socket would fail the test
    with closing(socket.create_server(("127.0.0.1", port))) as free:
        assert free.getsockname()[1] == port
