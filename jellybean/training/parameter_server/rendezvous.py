"""How workers find the parameter servers, and where the run's key comes from.

Under `jellybean train` a file in the launcher's temporary folder, which only this user can read, has addresses and key.
Under torchrun addresses are in torchrun's store, which anybody who can connect to it may read and change. So the key
comes from the environment; only if servers listen on loopback may it be in that store.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from jellybean.documents.training import TrainingDocument
from jellybean.training.errors import RankLostError, TrainingError
from jellybean.training.processes.environment import STORE
from jellybean.training.processes.ranks import NO_TIMEOUT

KEY = "JELLYBEAN_TRAINING_KEY"  # environment variable: the run's key under torchrun
_KEY_BYTES = 32
_LEAST_CHARACTERS = 32  # of a key in the environment


def key_from_environment(address: str, environment: Mapping[str, str]) -> bytes | None:
    """The key that the environment gives to the run's processes; None: it is in the store.

    `address`: where servers listen. TrainingError if it is beyond loopback under torchrun and there is no key, or if
    the key is short.
    """
    if STORE in environment:
        return None
    key = environment.get(KEY)
    if key is None and ipaddress.ip_address(address).is_loopback:
        return None
    if key is None or len(key) < _LEAST_CHARACTERS:
        problem = f"has fewer than {_LEAST_CHARACTERS} characters" if key is not None else "is not set"
        raise TrainingError(
            f"parameter servers listen at {address}, to which others can connect, and {KEY} {problem}: make a key by "
            "`python -c 'import secrets; print(secrets.token_hex())'`, and export it under this name on every machine "
            "before torchrun starts"
        )
    return os.fsencode(key)


class Rendezvous:
    """The addresses of the servers, and the key.

    There is no limit on how long a process waits for them: a server may take long to start, and if one dies, the
    launcher ends all processes.
    """

    def __init__(self, document: TrainingDocument) -> None:
        self._key = key_from_environment(document.sync.address, os.environ)
        path = os.environ.get(STORE)
        self._store: dist.Store
        if path is not None:
            self._store = dist.FileStore(str(Path(path)), -1)
        else:
            self._store = _torchrun_store(timedelta(seconds=document.timeout_s))
        self._store.set_timeout(NO_TIMEOUT)

    def publish(self, server: int, address: tuple[str, int]) -> None:
        """Say where a server listens."""
        self._store.set(f"server-{server}", f"{address[0]} {address[1]}")

    def address(self, server: int) -> tuple[str, int]:
        """Where a server listens; waits until it says so. RankLostError if the store is gone."""
        host, port = self._get(f"server-{server}").decode().split()
        return host, int(port)

    def make_key(self) -> bytes:
        """The run's key, for the first server, which makes it if the environment has none."""
        if self._key is not None:
            return self._key
        key = secrets.token_bytes(_KEY_BYTES)
        self._store.set("key", key.hex())
        return key

    def key(self) -> bytes:
        """The run's key; waits until it is made."""
        return self._key if self._key is not None else bytes.fromhex(self._get("key").decode())

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
