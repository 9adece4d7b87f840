"""How workers find the parameter servers: a store with addresses and the run's key.

Under `jellybean train` the store is a file in the launcher's temporary folder, which only this user can read; under
torchrun it is torchrun's store.
"""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from jellybean.training.errors import RankLostError
from jellybean.training.processes.ranks import NO_TIMEOUT

STORE = "JELLYBEAN_TRAINING_STORE"  # environment variable: path of the launcher's store
_KEY_BYTES = 32


class Rendezvous:
    """The addresses of the servers, and the key.

    There is no limit on how long a process waits for them: a server may take long to start, and if one dies, the
    launcher ends all processes.
    """

    def __init__(self, timeout_s: float) -> None:
        path = os.environ.get(STORE)
        self._store: dist.Store
        if path is not None:
            self._store = dist.FileStore(str(Path(path)), -1)
        else:
            self._store = _torchrun_store(timedelta(seconds=timeout_s))
        self._store.set_timeout(NO_TIMEOUT)

    def publish(self, server: int, address: tuple[str, int]) -> None:
        """Say where a server listens."""
        self._store.set(f"server-{server}", f"{address[0]} {address[1]}")

    def address(self, server: int) -> tuple[str, int]:
        """Where a server listens; waits until it says so. RankLostError if the store is gone."""
        host, port = self._get(f"server-{server}").decode().split()
        return host, int(port)

    def make_key(self) -> bytes:
        """Make the run's key, for the first server."""
        key = secrets.token_bytes(_KEY_BYTES)
        self._store.set("key", key.hex())
        return key

    def key(self) -> bytes:
        """The run's key."""
        return bytes.fromhex(self._get("key").decode())

    def _get(self, name: str) -> bytes:
        try:
            return bytes(self._store.get(name))
        except (RuntimeError, dist.DistError) as error:
            raise RankLostError(f"the launcher's store is gone before a parameter server was there: {error}") from error


def _torchrun_store(timeout: timedelta) -> dist.Store:
    """torchrun's store. Keys carry the restart count, as those of another attempt may still be there."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and os.environ["RANK"] == "0"
    store = dist.TCPStore(address, port, None, is_master=serves, timeout=timeout, wait_for_workers=False)
    return dist.PrefixStore(f"servers-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
