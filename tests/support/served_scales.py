"""A small project that is served here with TLS on a port, and has answered requests with ids of two clients."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jellybean.serving import Client
from tests.support.command_line import jellybean
from tests.support.ports import free_port
from tests.support.scales_project import make_scales_project
from tests.support.waiting import wait_until

IDS = tuple(f"order-{number}" for number in range(6))  # of alice; bob has the first one, and one of his own; carol none
ADMIN = Path(".jellybean/certs/admin/admin")


@dataclass(frozen=True)
class ServedScales:
    """The project, and an empty folder elsewhere that has only the admin's certificate."""

    project: Path
    elsewhere: Path
    port: int
    http_port: int

    def client(self, name: str) -> Path:
        """Folder of a client's certificate."""
        return self.project / f".jellybean/certs/client/{name}"


@contextlib.contextmanager
def served_scales(folder: Path) -> Iterator[ServedScales]:
    """Serve until the context ends. The ledger has all requests."""
    project = make_scales_project(folder / "scales")
    found = ServedScales(project, folder / "empty", free_port(), free_port())
    jellybean("plan", str(project))
    jellybean("certs", str(project), "--client", "alice", "--client", "bob", "--client", "carol")
    shutil.copytree(project / ADMIN, found.elsewhere / ADMIN)
    own = ("--port", str(found.port), "--http-port", str(found.http_port), "--detach")
    jellybean("up", str(project), *own, "--tls", str(project / ".jellybean/certs/gateway"))
    try:
        for name, ids in (("alice", IDS), ("bob", ("order-0", "own"))):
            with Client(f"127.0.0.1:{found.port}", tls=found.client(name)) as client:
                for number, id_ in enumerate(ids):
                    client.infer({"x": np.full((1, 4), number, np.float32)}, request_id=id_)
        wait_until(lambda: _answered(project) == len(IDS) + 2)  # ten seconds after the interval before
        yield found
    finally:
        jellybean("down", str(project))


def _answered(project: Path) -> int:
    lines = json.loads(jellybean("cost", str(project), "--by", "client", "--json").stdout)["lines"]
    return sum(line["answered"] for line in lines)
