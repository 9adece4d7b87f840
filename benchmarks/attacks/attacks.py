"""Each attack on a gateway in turn: its memory, and the answers to a client that sends twenty requests a second."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attacks.attackers import ATTACKS
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import Connect, LoadError
from benchmarks.overhead.processes import certificates, client_tls, free_port, process
from benchmarks.stages import chain_client, chain_project
from jellybean_agent import Identity, Role
from jellybean_solver import to_document

RATE_PER_S, SECONDS, SMOKE_SECONDS = 20, 10.0, 1.0
ROUNDS = 3  # alternating slices without the attacker and beside it: the machine is not equally quiet all the time
BUDGET_MIB, SPREAD = 256, 1.3
_ROWS = 4  # of 1 KiB, in a request of the client
_PORTS = ("clients", "http", "health", "metrics")
_HTTP = ("long_texts", "large_json", "slow_bodies")


@dataclass(frozen=True)
class Served:
    """A gateway. `attacker`: the folder of the certificate that attackers have."""

    pid: int
    ports: dict[str, int]
    connect: Connect
    attacker: Path


@benchmark
def attacks(smoke: bool) -> Result:
    """Silent connections at each port, then each other attack at the port that it is of."""
    seconds, rounds = (SMOKE_SECONDS, 1) if smoke else (SECONDS, ROUNDS)
    rows = []
    for name in ATTACKS:
        for port in _PORTS if name == "silent" else ("http",) if name in _HTTP else ("clients",):
            with _gateway() as served:
                rows.append([name.replace("_", " "), port, *_attacked(served, name, port, seconds, rounds)])
    return Result(
        title="A gateway under attack",
        topic=Topic.SERVING,
        method=f"A gateway and an agent with mutual TLS. A client sends {RATE_PER_S} requests a second for "
        f"{seconds:g} s, alone and then beside an attacker, {rounds} times. The attacker is a process of its own with "
        "another client's certificate and the lowest priority. Percentiles are of all requests of a kind. Memory is the gateway's resident "
        "memory before, and the most during the attack. All processes share the cores.",
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
            ),
        ),
    )


def _attacked(served: Served, name: str, port: str, seconds: float, rounds: int) -> list[str]:
    """The figures of one attack."""
    alone: list[float] = []
    beside: list[float] = []
    before = 0.0
    for _ in range(rounds):
        alone += _paced(served.connect, seconds)
        if not before:
            before = _memory_mib(served.pid, "VmRSS")
            Path(f"/proc/{served.pid}/clear_refs").write_text("5", encoding="ascii")  # counts the peak anew
        with _attacker(served, name, port, seconds):
            beside += _paced(served.connect, seconds)
        time.sleep(min(1.0, seconds))
    sent = round(RATE_PER_S * seconds) * rounds
    times = [f"{1e3 * _percentile(times, share):.1f} ms" for share in (0.5, 0.99) for times in (alone, beside)]
    sizes = [f"{size:.0f} MiB" for size in (before, _peak(served), SPREAD * before + BUDGET_MIB)]
    return [f"{len(beside)} of {sent}", *times, *sizes]


def _percentile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * len(times))] if times else float("nan")


@contextlib.contextmanager
def _attacker(served: Served, name: str, port: str, seconds: float) -> Iterator[None]:
    """An attack that has begun and goes on meanwhile.

    It is made from another machine: here it has the lowest priority, so that little of its own work is in the figures.
    """
    command = ["nice", "-n", "19", sys.executable, "-m", "benchmarks.attacks.attackers", name, str(served.ports[port])]
    with subprocess.Popen([*command, str(served.attacker), str(seconds + 2.0)]) as attacker:
        time.sleep(min(1.0, seconds))
        yield
        attacker.kill()


def _peak(served: Served) -> float:
    return _memory_mib(served.pid, "VmHWM")


def _memory_mib(pid: int, key: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def _paced(connect: Connect, seconds: float) -> list[float]:
    """The times of the answers to requests at the rate; those without an answer within 5 s are left out."""
    took: list[float] = []
    connection = connect()
    from_s = time.perf_counter()
    for number in range(round(RATE_PER_S * seconds)):
        due_s = from_s + number / RATE_PER_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        began_s = time.perf_counter()
        try:
            connection.start()
            while not connection.receive():
                connection.flush()
                wants = [connection.socket] if connection.is_sending else []
                if not any(select.select([connection.socket], wants, [], 5.0)):
                    raise LoadError("no answer")
            took.append(time.perf_counter() - began_s)
        except (OSError, LoadError):
            with contextlib.suppress(OSError):
                connection = connect()
    connection.socket.close()
    return took


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
        _await_answer(connect)
        yield Served(child.pid, ports, connect, folders[attacker])


def _await_answer(connect: Connect) -> None:
    until_s = time.monotonic() + 120.0
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            if _paced(connect, 1.0 / RATE_PER_S):
                return
        time.sleep(0.2)
    raise LoadError("the gateway does not serve")
