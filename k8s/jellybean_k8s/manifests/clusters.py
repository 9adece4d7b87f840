"""A plan over several clusters: which workers run in which, and the relay that joins them.

Agents of other clusters than the gateway's only dial out: a tunnel beside each of them reaches the relay in the
gateway's cluster, at an address that they can reach (docs/adr/0026).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.pod_settings import PodSettings, ServiceSettings
from jellybean_protos.addresses import parse_address

_NODE_PORTS = range(30000, 32768)  # that the API server gives to Services of type NodePort, unless told otherwise
_MIB = 2**20


class ClustersError(DeployError):
    """What settings say of clusters does not fit the plan, or itself."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """What runs in a cluster: the workers of these tiers, and of single sites (`store-17`), which go before tiers."""

    tiers: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The relay in the gateway's cluster, by which agents of other clusters are reached and reach others.

    `address`: HOST:PORT where they reach its Service. DeployError if it is none, or no port of a NodePort Service.
    """

    address: str
    service: ServiceSettings = field(default_factory=lambda: ServiceSettings("LoadBalancer"))
    cpu: float = 0.5
    memory_bytes: float = 256.0 * _MIB
    pods: PodSettings = field(default_factory=PodSettings)

    @property
    def port(self) -> int:
        """The port of the address."""
        return parse_address(self.address)[1]

    def __post_init__(self) -> None:
        """Check the address."""
        try:
            port = self.port
        except ValueError as error:
            raise DeployError(f"relay.address: {error}") from error
        if self.service.type == "NodePort" and port not in _NODE_PORTS:
            ports = f"{_NODE_PORTS[0]} to {_NODE_PORTS[-1]}"
            raise DeployError(f"relay.address: port {port} is no port of a Service of type NodePort ({ports})")


def cluster_of(clusters: Mapping[str, ClusterPlace], tier: str, site: str | None = None) -> str:
    """The cluster of a tier's workers, of a tier with several sites of those in one. ClustersError if there is none."""
    if site is not None:
        for name, place in clusters.items():
            if site in place.sites:
                return name
    for name, place in clusters.items():
        if tier in place.tiers:
            return name
    what = f"tier {tier}" if site is None else f"site {site} of tier {tier}"
    raise ClustersError(
        f"clusters: none has {what}: write it into the tiers{'' if site is None else ' or sites'} of one"
    )


def check_clusters(clusters: Mapping[str, ClusterPlace], tiers: Iterable[str], sites: Iterable[str]) -> None:
    """ClustersError for a tier or site that the plan does not have, or that two clusters have."""
    for kind, known, named in (
        ("tier", tuple(tiers), [(name, tier) for name, place in clusters.items() for tier in place.tiers]),
        ("site", tuple(sites), [(name, site) for name, place in clusters.items() for site in place.sites]),
    ):
        of: dict[str, str] = {}
        for cluster, own in named:
            if own not in known:
                there = ", ".join(known[:8]) or "none"
                raise ClustersError(
                    f"clusters.{cluster}: there is no {kind} {own}; the {kind}s of the plan are {there}"
                )
            if own in of:
                where = "twice" if of[own] == cluster else f"in {of[own]} too"
                raise ClustersError(f"clusters.{cluster}: {kind} {own} is {where}: it runs in one cluster")
            of[own] = cluster
