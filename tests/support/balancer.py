"""What a Service does: each connection goes to one of several ports of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def balancer(choose: Callable[[], int | None]) -> Iterator[str]:
    """An address whose connections go to the port that `choose` gives for each; they are closed if it gives none."""
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


def _forward(near: socket.socket, local: int | None) -> None:
    """Pass bytes both ways until either side ends."""
    with contextlib.suppress(OSError), near:
        near.settimeout(None)
        if local is None:
            return
        with socket.create_connection(("127.0.0.1", local)) as far:
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
