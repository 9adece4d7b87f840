"""What a gateway still waits for: how many workers have joined, and the commands with which a box joins."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.serving.allowed_python import allow_python_options
from jellybean.serving.client import Client
from jellybean.serving.local.running import Running
from jellybean_agent import EVERY_ADDRESS, GATEWAY, is_every_address, read_plan

_MAX_NAMES = 8  # longest list of workers in a message


@dataclass(frozen=True, slots=True)
class Joining:
    """The workers of a gateway (worker -> state), and where their boxes join.

    `enrol`: HOST:PORT as boxes reach it; empty if the gateway takes no tokens. `functions`: worker -> Python functions
    that it runs.
    """

    directory: Path
    workers: Mapping[str, str]
    enrol: str
    functions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Workers that have not joined."""
        return tuple(name for name, state in self.workers.items() if state != "ready")

    @property
    def joined(self) -> int:
        """Number of workers that have joined."""
        return len(self.workers) - len(self.waiting)

    @property
    def summary(self) -> str:
        """How many workers have joined, of how many."""
        return f"{self.joined} of {len(self.workers)} workers have joined"

    def commands(self, worker: str) -> tuple[str, str]:
        """The command that prepares a worker here (empty if none does), and the one that its box runs."""
        name, allowed = shlex.quote(worker), allow_python_options(self.functions.get(worker, ()))
        if not self.enrol:
            files = f"--plan plan.json --peers peers.json --tls agent/{name}"
            return "", f"jellybean-agent --worker {name} {files} --listen {EVERY_ADDRESS}:PORT --no-emulation{allowed}"
        token = f"jellybean token {shlex.quote(str(self.directory))} --worker {name} > token"
        return token, f"jellybean-agent --join {self.enrol} --token-file token --state jellybean-agent{allowed}"

    def advice(self) -> Iterator[str]:
        """What is waited for, and how the first of these workers joins; nothing if all have joined."""
        if not self.waiting:
            return
        more = f" and {len(self.waiting) - _MAX_NAMES} more" if len(self.waiting) > _MAX_NAMES else ""
        names = ", ".join(self.waiting[:_MAX_NAMES])
        yield f"requests are answered over routes whose workers have all joined; waiting for {names}{more}"
        here, box = self.commands(self.waiting[0])
        if here:
            yield f"for each of them, here:   {here}"
            yield f"on its box, with the token (a box that joined before needs none):   {box}"
        else:
            yield f"without --enrol boxes take no tokens: on each box, with its files and models:   {box}"

    def to_json(self) -> dict[str, Any]:
        """The keys of `gateway --json` about joining."""
        join = {worker: dict(zip(("token", "agent"), self.commands(worker), strict=True)) for worker in self.waiting}
        return {"joined": self.joined, "waiting": list(self.waiting), "enrol": self.enrol or None, "join": join}


def joining_of(running: Running, directory: Path, enrol: str | None) -> Joining:
    """The workers of a gateway that has just started. `enrol`: where it listens for boxes, if it does."""
    view = read_plan(running.state.plan_path)
    with Client(running.gateway_address) as client:
        states = client.status().workers
    addresses = json.loads((Path(running.state.plan_folder) / "peers.json").read_text(encoding="utf-8"))
    workers = {worker.name: states.get(worker.name, "") for worker in view.serving}
    operators = {worker.name: [view.operators[name] for name in worker.operators] for worker in view.serving}
    functions = {
        name: tuple(operator.python.function for operator in found if operator.python is not None)
        for name, found in operators.items()
    }
    return Joining(directory, workers, _reached_at(enrol or "", addresses[GATEWAY]), functions)


def _reached_at(listen: str, gateway: str) -> str:
    """An address to listen on, as others reach it: with the gateway's host, if it stands for every address."""
    host, _, port = listen.rpartition(":")
    return f"{gateway.rpartition(':')[0]}:{port}" if listen and is_every_address(host) else listen
