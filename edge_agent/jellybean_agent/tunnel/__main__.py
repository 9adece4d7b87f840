"""`python -m jellybean_agent.tunnel`: the tunnel as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jellybean_agent.brain.plan_reading import read_plan
from jellybean_agent.errors import PlanViewError
from jellybean_agent.relay.addresses import read_ports
from jellybean_agent.relay.process import Parser, Service, add_process_options, run_service
from jellybean_agent.relay.traffic import TrafficCollector
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.security.identity import Identity, Role
from jellybean_agent.system.addresses import parse_address
from jellybean_agent.tunnel.tunnel import Tunnel, TunnelSettings
from jellybean_protos.standard_streams import open_standard_streams

_PROG = "jellybean-tunnel"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a tunnel."""
    open_standard_streams()
    given = _parser().parse_args(argv)
    return run_service(_PROG, given, lambda: _service(given))


def _service(given: argparse.Namespace) -> Service:
    relay, agent = parse_address(given.relay), parse_address(given.agent)
    peers = {} if given.peers is None else read_ports(given.peers)
    certificate = CertificateFolder(given.tls)
    found = certificate.current().identity
    workflow = given.workflow or (read_plan(given.plan).name if given.plan else found.workflow)
    wanted = Identity(workflow, Role.AGENT, given.worker)
    if found != wanted:
        raise PlanViewError(f"{given.tls}: the certificate is of {found.uri}, this is {wanted.uri}")
    settings = TunnelSettings(relay, given.worker, agent, peers, deployment=given.deployment, bind=given.bind)
    tunnel = Tunnel(settings, certificate)
    collector = TrafficCollector("tunnel", tunnel.traffic, tunnel.offers, certificate, tunnel.admission)
    return Service("tunnel", certificate, collector, tunnel.admission, tunnel.start, tunnel.stop)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_PROG, description="Pipe connections between an agent that only dials out and a relay, until SIGTERM."
    )
    parser.add_argument("--relay", metavar="HOST:PORT", required=True, help="where the relay listens for tunnels")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--plan", type=Path, help="the plan document (JSON), to compare the certificate with")
    group.add_argument("--workflow", help="its name instead (default: that of the certificate)")
    parser.add_argument("--worker", required=True, help="the name of the agent's worker")
    parser.add_argument("--agent", metavar="HOST:PORT", required=True, help="where the agent listens")
    parser.add_argument("--peers", type=Path, help='JSON: {"local port": "name of a remote peer"}; gateway: ""')
    parser.add_argument("--bind", default="127.0.0.1", help="host that the peers' ports are on")
    add_process_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
