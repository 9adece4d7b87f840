"""`python -m jellybean_agent.relay`: the relay as a process."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jellybean_agent.errors import PlanViewError
from jellybean_agent.relay.addresses import read_ports, read_targets
from jellybean_agent.relay.process import Parser, Service, add_process_options, run_service
from jellybean_agent.relay.server import Relay, Routes
from jellybean_agent.relay.traffic import TrafficCollector
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.identity import Role
from jellybean_agent.system.addresses import parse_address
from jellybean_protos.standard_streams import open_standard_streams

LOG = logging.getLogger("jellybean.relay")
_PROG = "jellybean-relay"
_RELAY_ROLES = (Role.RELAY, Role.GATEWAY)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a relay."""
    open_standard_streams()
    given = _parser().parse_args(argv)
    return run_service(_PROG, given, lambda: _service(given))


def _service(given: argparse.Namespace) -> Service:
    listen = parse_address(given.listen)
    workers = read_ports(given.workers)
    routes = Routes(workers, {} if given.targets is None else read_targets(given.targets))
    if not all(workers.values()):
        raise PlanViewError(f"{given.workers}: a worker has an empty name, which is the gateway's")
    if both := sorted(set(routes.workers.values()) & set(routes.targets)):
        raise PlanViewError(f"{given.targets}: {', '.join(both)} is a remote worker too, in {given.workers}")
    certificate = CertificateFolder(given.tls)
    identity = certificate.current().identity
    if identity.role not in _RELAY_ROLES:
        raise PlanViewError(f"{given.tls}: the certificate is of {identity.uri}, not of a relay or gateway")
    relay = Relay(certificate, routes, deployment=given.deployment)

    async def start(ready: Callable[[bool], None]) -> None:
        await relay.start(listen, given.bind)
        LOG.info("relay ready: %s", ", ".join(f"{worker} at port {port}" for port, worker in workers.items()))
        ready(True)

    collector = TrafficCollector("relay", relay.traffic, relay.offers, certificate, relay.admission)
    return Service("relay", certificate, collector, relay.admission, start, relay.stop)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_PROG, description="Relay connections to and from agents that only dial out, until SIGTERM; then drain."
    )
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="where tunnels dial in, with mutual TLS")
    parser.add_argument("--workers", type=Path, required=True, help='JSON: {"local port": "remote worker"}')
    parser.add_argument("--targets", type=Path, help='JSON: {"peer of remote workers": "HOST:PORT"}; gateway: ""')
    parser.add_argument("--bind", default="127.0.0.1", help="host that the workers' ports are on")
    add_process_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
