"""Pods of a mock API server that are ready once they are made, and nodes that they fit on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tests.api_server import RunningServer


def add_nodes(server: RunningServer, **tiers: str) -> None:
    """Add nodes by name, with the label of a tier."""
    for name, tier in tiers.items():
        meta = {"name": name, "uid": name, "labels": {"jellybean.dev/tier": tier}}
        server.api.store["nodes", "", name] = {"kind": "Node", "metadata": meta, "spec": {}, "status": {}}


@contextlib.contextmanager
def ready_pods(server: RunningServer) -> Iterator[None]:
    """Report every new pod as ready."""
    stop = threading.Event()
    thread = threading.Thread(target=_report, args=(server, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _report(server: RunningServer, stop: threading.Event) -> None:
    while not stop.wait(0.02):
        for key, pod in list(server.api.store.items()):
            if key[0] == "pods" and pod["status"]["phase"] == "Pending":
                conditions = [{"type": "Ready", "status": "True"}]
                server._loop.call_soon_threadsafe(
                    server.api._save, key, {**pod, "status": {"phase": "Running", "conditions": conditions}}, pod
                )
