"""What the objects of a plan in several clusters must be together: each process reaches all others that it talks to.

`reached` follows an address as a connection would: to a pod, through a relay, or through a tunnel and its relay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jellybean_agent import plan_view
from tests.k8s_check import Object, object_complaints, worker_pods

GATEWAY = ""


def cluster_complaints(clusters: Mapping[str, Sequence[Object]], address: str) -> list[str]:
    """What is wrong with the objects of each cluster, and together. `address`: of the relay."""
    found = [f"{name}: {text}" for name, objects in clusters.items() for text in object_complaints(objects)]
    return [*found, *_together({name: objects for name, objects in clusters.items() if objects}, address)]


def _together(clusters: Mapping[str, Sequence[Object]], address: str) -> Iterator[str]:
    home = {name: own for name, objects in clusters.items() for own, *_ in worker_pods(objects)}
    gateways = [name for name, objects in clusters.items() if _named(objects, "Deployment", "-gateway")]
    if len(gateways) != 1:
        yield f"gateways in {gateways}"
        return
    where: dict[str, str] = {GATEWAY: gateways[0]}
    for name, objects in clusters.items():
        for worker, *_ in worker_pods(objects):
            if worker in where:
                yield f"{worker} is in {where[worker]} and {name}"
            where[worker] = name
    view = plan_view(json.loads(_files(next(iter(clusters.values())))["plan.json"]))
    serving = {worker.name for worker in view.serving}
    if set(where) != {GATEWAY, *serving}:
        yield f"pods {sorted(home)} for workers {sorted(serving)}"
        return
    for one, other in _talking(where):
        if (there := reached(clusters, where, (one, other), address)) != other:
            yield f"{one or 'the gateway'} in {where[one]} reaches {there!r} instead of {other!r}"


def _talking(where: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of processes that may talk to each other: not those of two sites."""
    for one in where:
        for other in where:
            sites = {name.rpartition("/")[0] for name in (one, other)} - {""}
            if one != other and len(sites) < 2:
                yield one, other


def reached(
    clusters: Mapping[str, Sequence[Object]], where: Mapping[str, str], pair: tuple[str, str], address: str
) -> str | None:
    """Which process a connection of the first one of a pair to the second one ends at; None if nowhere."""
    (one, other), here = pair, clusters[where[pair[0]]]
    host, _, port = json.loads(_files(here)["peers.json"])[other].rpartition(":")
    if host == "127.0.0.1":
        if _tunnel_of(here, one, address) is None:
            return None
        asked = json.loads(_files(here)["tunnel.json"])[port]
        return _from_relay(clusters[where[GATEWAY]], asked)
    if (pods := _pods(here)) and f"{host}:{port}" in pods:
        return pods[f"{host}:{port}"]
    if _named(here, "Deployment", "-relay") == [host] and _named(here, "Service", "-relay").count(host) == 1:
        return str(json.loads(_files(here)["workers.json"])[port])
    return None


def _from_relay(objects: Sequence[Object], asked: str) -> str | None:
    """Which process the relay leads to that is asked for a name."""
    files = _files(objects)
    if asked in json.loads(files["workers.json"]).values():
        return asked
    return _pods(objects).get(json.loads(files["targets.json"]).get(asked))


def _pods(objects: Sequence[Object]) -> dict[str | None, str]:
    """Address -> process."""
    found: dict[str | None, str] = {address: worker for worker, _, address, _ in worker_pods(objects)}
    return found | {f"{name}:7001": GATEWAY for name in _named(objects, "Deployment", "-gateway")}


def _tunnel_of(objects: Sequence[Object], worker: str, address: str) -> Any:
    """The sidecar of a worker's pod that dials the relay's address; None if there is none."""
    for item in objects:
        if item["kind"] != "StatefulSet" or worker not in {
            name for name, *_ in worker_pods([item, *_scalers(objects)])
        }:
            continue
        for container in item["spec"]["template"]["spec"]["initContainers"]:
            if container["name"] == "tunnel" and f"--relay={address}" in container["args"]:
                return container
    return None


def _scalers(objects: Sequence[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "HorizontalPodAutoscaler"]


def _files(objects: Sequence[Object]) -> Mapping[str, str]:
    (found,) = (item["data"] for item in objects if item["kind"] == "ConfigMap")
    return dict(found)


def _named(objects: Sequence[Object], kind: str, ending: str) -> list[str]:
    names = (item["metadata"]["name"] for item in objects if item["kind"] == kind)
    return [name for name in names if name.endswith(ending)]
