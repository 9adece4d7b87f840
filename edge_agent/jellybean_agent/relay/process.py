"""What the processes of relay and tunnel have in common: options, health, metrics, SIGTERM and how they end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from grpc_health.v1 import health
from prometheus_client.registry import Collector

from jellybean_agent.admission.process import Admission
from jellybean_agent.errors import AgentError, PlanViewError, describe_error
from jellybean_agent.process.health import serve_health, set_health
from jellybean_agent.process.metrics import serve_metrics
from jellybean_agent.process.server import DEFAULT_DRAIN_S, running_task, termination_event
from jellybean_agent.relay.wire import MAX_DEPLOYMENT_BYTES
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.expiry import watch_expiry
from jellybean_agent.system.open_files import raise_open_file_limit
from jellybean_agent.telemetry.logs import add_log_options, configure_logging
from jellybean_agent.telemetry.printable import printable

LOG = logging.getLogger("jellybean.relay")
_MAX_PORT = 65535


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


@dataclass(frozen=True, slots=True)
class Service:
    """What a process runs. `stop` gets the seconds of a drain, and returns how many connections were reset.

    `admission`: what its ports share.
    """

    name: str
    certificate: CertificateFolder
    collector: Collector
    admission: Admission
    start: Callable[[Callable[[bool], None]], Awaitable[None]]  # gets a function to call with "is ready"
    stop: Callable[[float], Awaitable[int]]


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that relay and tunnel have in common."""
    parser.add_argument("--tls", type=Path, required=True, help="folder with tls.crt, tls.key, ca.crt; read on change")
    parser.add_argument(
        "--deployment", metavar="ID", type=_deployment, default="", help="a relay accepts only tunnels with its own ID"
    )
    parser.add_argument("--drain-s", type=_seconds, default=DEFAULT_DRAIN_S, help="longest time of a drain, in seconds")
    parser.add_argument("--health-port", type=_port, default=0, help="grpc.health.v1 without TLS, for probes (0: off)")
    parser.add_argument("--metrics-port", type=_port, default=0, help="port of Prometheus metrics (0: off)")
    parser.add_argument("--metrics-host", default="127.0.0.1", help="where Prometheus metrics are served")
    add_log_options(parser)


def run_service(prog: str, given: argparse.Namespace, make: Callable[[], Service]) -> int:
    """Run a service until SIGTERM or SIGINT. Exit status: 0 after a drain, 2 if the options are wrong, else 1."""
    log_format = configure_logging(prog, given.log_format, given.log_level)
    try:
        asyncio.run(_serve(given, make))
    except (AgentError, OSError) as error:
        reason = str(error) if isinstance(error, AgentError) else describe_error(error, name=True)
        if log_format == "json":
            LOG.error("%s", reason)
        else:
            print(f"{prog}: {printable(reason)}", file=sys.stderr)
        return 2 if isinstance(error, PlanViewError) else 1
    return 0


async def _serve(given: argparse.Namespace, make: Callable[[], Service]) -> None:
    stop = termination_event()
    most_open_files = raise_open_file_limit()  # a relay has a listener and idle offers of each worker, a pipe two ends
    service = make()
    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await set_health(servicer, serving=False)
    states: asyncio.Queue[bool] = asyncio.Queue()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(await serve_health(given.health_port, servicer, service.admission))
        at = given.metrics_host, given.metrics_port
        stop_metrics = serve_metrics(at, service.collector, service.admission.refused)
        if stop_metrics is not None:
            stack.callback(stop_metrics)
        await service.start(states.put_nowait)
        LOG.info("%s may have %d files and connections open", service.name, most_open_files)
        await stack.enter_async_context(running_task(_follow(states, servicer)))
        await stack.enter_async_context(running_task(watch_expiry(service.certificate)))
        await stop.wait()
        states.put_nowait(False)
        left = await service.stop(given.drain_s)
        LOG.info("%s drained, %d connections left", service.name, left)


def _follow(states: asyncio.Queue[bool], servicer: Any) -> Coroutine[Any, Any, None]:
    async def follow() -> None:
        while True:
            await set_health(servicer, serving=await states.get())

    return follow()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _deployment(text: str) -> str:
    if not text.isprintable() or len(text.encode()) > MAX_DEPLOYMENT_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no ID: at most {MAX_DEPLOYMENT_BYTES} bytes, all printable")
    return text


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found
