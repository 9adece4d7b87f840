"""Each attack on a gateway in turn: its memory, and the answers to a client that sends twenty requests a second."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attacks.attackers import ATTACKS
from benchmarks.attacks.beside import RATE_PER_S, await_answer, forget_peak, paced, peak_mib, percentile, resident_mib
from benchmarks.attacks.deployment import deployment
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import Connect
from benchmarks.overhead.processes import certificates, client_tls, free_port, process
from benchmarks.stages import chain_client, chain_project
from jellybean_agent import Identity, Role
from jellybean_solver import to_document

SECONDS, SMOKE_SECONDS = 6.0, 1.0
ROUNDS = 3  # alternating slices without the attacker and beside it: the machine is not equally quiet all the time
BUDGET_MIB, SPREAD = 256, 1.3
ON_IDLE = ("chrt", "--idle", "0")  # of util-linux
_ROWS = 4  # of 1 KiB, in a request of the client
_PORTS = ("clients", "http", "health", "metrics")
_AT = {"long_texts": "http", "large_json": "http", "slow_bodies": "http", "tiny_chunks": "http", "watches": "health"}


@dataclass(frozen=True)
class Served:
    """A gateway. `attacker`: the folder of the certificate that attackers have."""

    pid: int
    ports: dict[str, int]
    connect: Connect
    attacker: Path


@benchmark
def attacks(smoke: bool) -> Result:
    """Silent connections at each port, then each other attack at the port that it is of; then a deployment."""
    seconds, rounds = (SMOKE_SECONDS, 1) if smoke else (SECONDS, ROUNDS)
    rows = []
    for name in ATTACKS:
        for port in _PORTS if name == "silent" else (_AT.get(name, "clients"),):
            with _gateway() as served:
                rows.append([name.replace("_", " "), port, *_attacked(served, name, port, seconds, rounds)])
    return Result(
        title="A gateway under attack",
        topic=Topic.SERVING,
        method=f"A gateway and an agent with mutual TLS. A client sends {RATE_PER_S} requests a second for "
        f"{seconds:g} s, alone and then beside an attacker, {rounds} times. The attacker is a process of its own with "
        "another client's certificate that gets the cores only while nobody else wants them. Percentiles are of all "
        "requests of a kind. "
        "Memory is the gateway's resident memory before, and the most during the attack. All processes share "
        "the cores.",
        reference=f"{SPREAD} times the memory before, and the {BUDGET_MIB} MiB that a process may keep of requests.",
        tables=(
            Table.of(
                [
                    "attack",
                    "port",
                    "answered beside it",
                    "p50 alone",
                    "p50 beside it",
                    "p99 alone",
                    "p99 beside it",
                    "memory before",
                    "most",
                    "bound",
                ],
                rows,
                "One gateway",
            ),
            deployment(smoke),
        ),
        notes=(
            "In the deployment three workflows share their workers, two gateways serve all of them, and the attack is "
            "by a client at the first gateway, or by a box that runs an operator of the third workflow. Clients of the "
            "other two workflows call both gateways. Processes: the gateways, and the worker whose join is attacked.",
        ),
    )


def _attacked(served: Served, name: str, port: str, seconds: float, rounds: int) -> list[str]:
    """The figures of one attack."""
    alone: list[float] = []
    beside: list[float] = []
    before = 0.0
    for _ in range(rounds):
        alone += paced(served.connect, seconds)
        if not before:
            before = resident_mib(served.pid)
            forget_peak(served.pid)
        with _attacker(served, name, port, seconds):
            beside += paced(served.connect, seconds)
        time.sleep(min(1.0, seconds))
    sent = round(RATE_PER_S * seconds) * rounds
    times = [f"{1e3 * percentile(times, share):.1f} ms" for share in (0.5, 0.99) for times in (alone, beside)]
    sizes = [f"{size:.0f} MiB" for size in (before, peak_mib(served.pid), SPREAD * before + BUDGET_MIB)]
    return [f"{len(beside)} of {sent}", *times, *sizes]


@contextlib.contextmanager
def _attacker(served: Served, name: str, port: str, seconds: float) -> Iterator[None]:
    """An attack that has begun and goes on meanwhile.

    It is made from another machine: here it runs only while no other process would (`SCHED_IDLE`), so that little of
    its own work is in the figures.
    """
    command = [*ON_IDLE, sys.executable, "-m", "benchmarks.attacks.attackers", name, str(served.ports[port])]
    with subprocess.Popen([*command, str(served.attacker), str(seconds + 2.0)]) as attacker:
        time.sleep(min(1.0, seconds))
        yield
        attacker.kill()


@contextlib.contextmanager
def _gateway() -> Iterator[Served]:
    """A gateway with one agent and all its ports."""
    with chain_project((1,), None, _ROWS) as (folder, plan), contextlib.ExitStack() as stack:
        (folder / "plan.json").write_text(json.dumps(to_document(plan)), encoding="utf-8")
        (name,) = (worker.name for worker in plan.workers)
        gateway, agent = Identity(plan.name, Role.GATEWAY), Identity(plan.name, Role.AGENT, name)
        attacker = Identity(plan.name, Role.CLIENT, "attacker")
        folders, client = stack.enter_context(certificates([gateway, agent, attacker]))
        at_gateway, at_agent = free_port(), free_port()
        ports = {port: free_port() for port in _PORTS}
        peers = {"": f"127.0.0.1:{at_gateway}", name: f"127.0.0.1:{at_agent}"}
        (folder / "peers.json").write_text(json.dumps(peers), encoding="utf-8")
        common = [f"--plan={folder}/plan.json", f"--peers={folder}/peers.json", f"--links={folder}/links"]
        own = [f"--worker={name}", f"--listen=127.0.0.1:{at_agent}", f"--root={folder}", f"--tls={folders[agent]}"]
        stack.enter_context(process([sys.executable, "-m", "jellybean_agent", *common, *own]))
        own = [f"--{'port' if port == 'clients' else f'{port}-port'}={number}" for port, number in ports.items()]
        command = [sys.executable, "-m", "jellybean.serving.gateway_main", *common, *own, f"--tls={folders[gateway]}"]
        child = stack.enter_context(process(command))
        connect = chain_client(ports["clients"], client_tls(client, gateway), _ROWS)
        await_answer(connect)
        yield Served(child.pid, ports, connect, folders[attacker])
