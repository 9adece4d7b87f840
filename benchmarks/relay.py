"""Requests to a worker through relay and tunnel, over those to the same worker without them, both with mutual TLS.

One agent with a model of one matrix product, so that messages are most of the work. Both runs are up at once, and are
measured in turn by one client (latency) and by many (rate).
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.overhead.load import Connect, LoadResult, measure
from benchmarks.overhead.processes import certificates, client_tls, free_port, process, started
from benchmarks.stages import chain_client, chain_project
from jellybean_agent import Identity, Role
from jellybean_solver import to_document

ROWS = {"16 KiB": 16, "1 MiB": 1024}  # size of a message: rows of 1 KiB
CLIENTS, ROUNDS, SLICE_S, WARMUP_S = 24, 10, 2.0, 0.5


@benchmark
def relay(smoke: bool) -> Result:
    """Each size of messages, direct and through the relay in turn."""
    rows = []
    rounds, slice_s = (1, 0.5) if smoke else (ROUNDS, SLICE_S)
    for size, count in ROWS.items():
        with _served(count, is_relayed=False) as direct, _served(count, is_relayed=True) as relayed:
            for clients in (1, CLIENTS):
                pairs: list[tuple[LoadResult, LoadResult]] = []
                for _ in range(rounds):
                    one = measure(direct, clients, slice_s, WARMUP_S)
                    pairs.append((one, measure(relayed, clients, slice_s, WARMUP_S)))
                rates = [statistics.median(pair[at].rate_per_s for pair in pairs) for at in (0, 1)]
                p50_s = [statistics.median(pair[at].p50_s for pair in pairs) for at in (0, 1)]
                ratio = statistics.median(through.rate_per_s / plain.rate_per_s for plain, through in pairs)
                slower = statistics.median(through.p50_s / plain.p50_s for plain, through in pairs)
                figures = [f"{rate:.0f}/s" for rate in rates] + [f"{ratio:.2f}"]
                figures += [f"{1e3 * found:.2f} ms" for found in p50_s] + [f"{slower:.2f}"]
                rows.append([size, clients, *figures])
    return Result(
        title="A worker behind a relay",
        topic=Topic.SERVING,
        method=f"One agent and its gateway, with mutual TLS, directly and through relay and tunnel. Both are up and "
        f"are measured in turn by closed-loop clients: medians of {rounds} alternating slices of {slice_s:g} s. A "
        "ratio is the median of each pair's. Requests go one way through the pipe, answers the other. All processes "
        "share the cores, also relay and tunnel, which encrypt a second time; a network's delay is not part of it.",
        reference="the same agent and gateway, connected directly.",
        tables=(
            Table.of(
                ["messages", "clients", "direct", "relayed", "ratio", "p50 direct", "p50 relayed", "ratio of p50"], rows
            ),
        ),
    )


@contextlib.contextmanager
def _served(rows: int, *, is_relayed: bool) -> Iterator[Connect]:
    """A client of a gateway with one agent, which is reached through relay and tunnel or directly."""
    with chain_project((1,), None, rows) as (folder, plan), contextlib.ExitStack() as stack:
        (folder / "plan.json").write_text(json.dumps(to_document(plan)), encoding="utf-8")
        (name,) = (worker.name for worker in plan.workers)
        gateway, agent = Identity(plan.name, Role.GATEWAY), Identity(plan.name, Role.AGENT, name)
        relay_identity = Identity(plan.name, Role.RELAY, "relay")
        folders, client = stack.enter_context(certificates([gateway, agent, relay_identity]))
        at_gateway, at_agent = free_port(), free_port()
        seen_by_agent, seen_by_gateway = at_gateway, at_agent
        if is_relayed:
            seen_by_agent, seen_by_gateway, listen = free_port(), free_port(), f"127.0.0.1:{free_port()}"
            workers = _file(folder, "workers", {str(seen_by_gateway): name})
            targets = _file(folder, "targets", {"": f"127.0.0.1:{at_gateway}"})
            command = [f"--listen={listen}", f"--workers={workers}", f"--targets={targets}"]
            stack.enter_context(_process("jellybean_agent.relay", [*command, f"--tls={folders[relay_identity]}"]))
            peers = _file(folder, "tunnel", {str(seen_by_agent): ""})
            command = [f"--relay={listen}", f"--worker={name}", f"--agent=127.0.0.1:{at_agent}", f"--peers={peers}"]
            stack.enter_context(_process("jellybean_agent.tunnel", [*command, f"--tls={folders[agent]}"]))
        common = [f"--plan={folder}/plan.json", f"--links={folder}/links"]
        peers = _file(folder, "agent", {"": f"127.0.0.1:{seen_by_agent}", name: f"127.0.0.1:{at_agent}"})
        own = [f"--worker={name}", f"--listen=127.0.0.1:{at_agent}", f"--root={folder}", f"--peers={peers}"]
        stack.enter_context(_process("jellybean_agent", [*common, *own, f"--tls={folders[agent]}"]))
        peers = _file(folder, "peers", {"": f"127.0.0.1:{at_gateway}", name: f"127.0.0.1:{seen_by_gateway}"})
        connect = chain_client(at_gateway, client_tls(client, gateway), rows)
        command = [sys.executable, "-m", "jellybean.serving.gateway_main", *common, f"--peers={peers}"]
        stack.enter_context(started([*command, f"--tls={folders[gateway]}"], connect))
        yield connect


def _file(folder: Path, name: str, content: dict[str, str]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _process(module: str, options: list[str]) -> contextlib.AbstractContextManager[object]:
    return process([sys.executable, "-m", module, *options])
