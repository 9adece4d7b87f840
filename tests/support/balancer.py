"""What a Service does: each connection goes to one of several endpoints."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Endpoint = tuple[str, int]  # host, port


@contextlib.contextmanager
def balancer(choose: Callable[[], Endpoint | None]) -> Iterator[str]:
    """An address whose connections go where `choose` says for each one, and are closed where it returns None."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    near, _ = listener.accept()
                    threading.Thread(target=_forward, args=(near, choose()), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


def _forward(near: socket.socket, endpoint: Endpoint | None) -> None:
    """Pass bytes both ways until either side ends."""
    with contextlib.suppress(OSError), near:
        near.settimeout(None)
        if endpoint is None:
            return
        with socket.create_connection(endpoint) as far:
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
