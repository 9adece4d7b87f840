"""The workers that a command names, with the addresses and certificates that their agents are called with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents.schema.infrastructure import WorkerPoolSpec
from jellybean.errors import InputError
from jellybean.quantities import did_you_mean
from jellybean.serving.endpoint import remote_endpoint
from jellybean.serving.errors import NotRunningError
from jellybean.serving.run_state import running_state
from jellybean_agent import Transport, describe_error


@dataclass(frozen=True, slots=True)
class RemoteWorker:
    """A worker of the fleet, its type in the profiles, and how its agent is called."""

    name: str
    worker_type: str
    address: str
    transport: Transport


def remote_workers(
    directory: Path, pools: Mapping[str, WorkerPoolSpec], names: Sequence[str], peers: Path | None, tls: Path | None
) -> list[RemoteWorker]:
    """The workers with these names. InputError, with every reason, if one is unknown, has not joined or is emulated.

    `directory`: the project's. `pools`: of its fleet. `peers`: file with the workers' addresses, by default that of the
    project's run. `tls`: folder of an admin's certificate, by default the project's. CertificateError if it is missing
    or cannot be used.
    """
    types = {name: _type_of(name, pools) for name in dict.fromkeys(names)}
    problems = list(_problems(types, pools))
    if not problems:
        addresses = _addresses(directory, peers)
        problems += [
            f"--on {name}: it has not joined: {peers or 'the run'} has no address of it; known: "
            f"{', '.join(filter(None, addresses)) or 'none'}"
            for name in types
            if name not in addresses
        ]
    if problems:
        raise InputError("\n".join(problems))
    return [
        RemoteWorker(name, str(worker_type), addresses[name], _transport(directory, addresses[name], tls))
        for name, worker_type in types.items()
    ]


def _type_of(worker: str, pools: Mapping[str, WorkerPoolSpec]) -> str | None:
    """The type of a worker; None if the fleet has no such worker. With sites it is called SITE/POOL-NUMBER."""
    pool, _, number = worker.rpartition("/")[2].rpartition("-")
    spec = pools.get(pool)
    if spec is None or not number.isascii() or not number.isdecimal() or not 1 <= int(number) <= spec.count:
        return None
    return spec.type or pool


def _problems(types: Mapping[str, str | None], pools: Mapping[str, WorkerPoolSpec]) -> Iterator[str]:
    known = [f"{pool}-{number}" for pool, spec in pools.items() for number in range(1, min(spec.count, 99) + 1)]
    measured_by: dict[str, str] = {}
    for name, worker_type in types.items():
        if worker_type is None:
            hint = did_you_mean(name, known) or f"workers: {', '.join(_shortened(known))}"
            yield f"--on {name}: the fleet has no such worker; {hint}"
            continue
        emulated = [pool for pool, spec in pools.items() if (spec.type or pool) == worker_type and spec.speed]
        if emulated:
            yield (
                f"--on {name}: workers.{emulated[0]}.speed says that this machine emulates a {worker_type}; remove the "
                "speed, and its times are those that the worker measures"
            )
        if (other := measured_by.setdefault(worker_type, name)) != name:
            yield f"--on {name}: {other} is a {worker_type}, too, and profiles are per type: name one of them"


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:6], *(["..."] if len(names) > 6 else [])]


def _addresses(directory: Path, peers: Path | None) -> dict[str, str]:
    """Worker -> address of its agent. InputError if there is no file with them."""
    if peers is None:
        try:
            peers = Path(running_state(directory.resolve()).plan_folder) / "peers.json"
        except NotRunningError as error:
            raise InputError(f"{error}; or give the workers' addresses: --peers peers.json") from error
    try:
        found = json.loads(peers.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{peers}: {describe_error(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(address, str) for address in found.values()):
        raise InputError(f"{peers}: not a map of worker names to addresses")
    return {str(name): address for name, address in found.items()}


def _transport(directory: Path, address: str, tls: Path | None) -> Transport:
    if address.startswith("unix:"):
        return Transport(insecure=True)
    return remote_endpoint(directory, address, tls).transport()
