"""Prints what deploying has done, and the status of a deployment, in one cluster or several."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from jellybean.cli.console import out, print_json, say
from jellybean.display.terminal import BAD, GOOD

if TYPE_CHECKING:
    from jellybean_k8s import Cluster, ClusterPart, DeploymentStatus, DeployResult, PartsStatus, SecretCertificate


def place_of(name: str, clusters: Mapping[str, Cluster]) -> str:
    """Where a deployment is, in words: the namespace, and of several clusters the name."""
    namespace = clusters[name].namespace
    return f"{name} ({namespace})" if name else namespace


def tell_relay(parts: Sequence[ClusterPart]) -> None:
    """Say where the relay has to be reached, if some agents run in other clusters than the gateway."""
    first, *others = parts
    relay, dialling = first.deployed.settings.relay, [part.name for part in others if part.objects]
    if relay is not None and first.deployed.has_relay:
        where = f"Service {first.deployed.relay_front} in {first.name} ({first.cluster.namespace})"
        say(f"agents in {', '.join(dialling)} dial {relay.address}, which has to lead to {where}")


def print_results(results: Mapping[str, DeployResult], app: str, clusters: Mapping[str, Cluster]) -> None:
    """Print what was done in each cluster, and where clients reach the gateway, which is in the first."""
    for name, result in results.items():
        where = place_of(name, clusters)
        if result.number is None:
            out.print(f"{app} in {where} already serves this plan: nothing was applied", style=GOOD)
            continue
        counts = f"{len(result.applied)} objects applied, {len(result.pruned)} pruned"
        out.print(f"{app} in {where}: revision {result.number}, {counts}", style=GOOD)
    first = next(iter(clusters))
    if first in results and results[first].number is not None:
        within = f" in {first}" if first else ""
        out.print(f"clients reach it at {app}.{clusters[first].namespace}.svc:8001{within}", style="bold")


def print_status(found: DeploymentStatus | PartsStatus, *, json: bool) -> None:
    """Print the status; of several clusters that of each, or why it cannot be read."""
    from jellybean_k8s import DeploymentStatus, PartsStatus

    parts = found.parts if isinstance(found, PartsStatus) else {"": found}
    if json and isinstance(found, PartsStatus):
        known = {name: one for name, one in parts.items() if isinstance(one, DeploymentStatus)}
        clusters = {name: _status_json(one) for name, one in known.items()}
        print_json({"clusters": clusters, "problems": list(found.problems), "well": found.is_well})
        return
    for name, one in parts.items():
        if isinstance(one, DeploymentStatus):
            if json:
                print_json(_status_json(one))
            else:
                _print_one(one, name)
    for line in found.problems if isinstance(found, PartsStatus) else ():
        out.print(line, style=BAD, soft_wrap=True)


def _print_one(found: DeploymentStatus, cluster: str = "") -> None:
    newest = found.revisions[-1]
    color = GOOD if found.is_well else BAD
    state = "is healthy" if found.is_well else "is not healthy"
    where = f"{cluster} ({found.namespace})" if cluster else found.namespace
    out.print(f"{found.app} in {where} {state}: plan {found.serving} serves", style=color)
    accuracy = "" if newest.accuracy is None else f", accuracy {newest.accuracy:.2f}"
    say(
        f"revision {newest.number} ({newest.state}), started {newest.began}, {newest.cost_usd_per_h:.2f} "
        f"USD/h{accuracy}"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("set", "pods", "available", ""):
        table.add_column(column, justify="right" if column in ("pods", "available") else "left")
    for item in found.sets:
        table.add_row(item.name, str(item.wanted), str(item.available), item.lacks)
    out.print(table)
    drift = (f"{what}: run `jellybean deploy` again" for what in found.drift.words)
    for text in (*found.problems, *drift, *found.certificates.problems, *found.reasons):
        out.print(text, style=BAD, soft_wrap=True)
    for text in found.certificates.notes:
        say(text)
    for revision in found.revisions[:-1]:
        say(f"revision {revision.number} ({revision.state}), started {revision.began}, plan {revision.plan[:12]}")


def _status_json(found: DeploymentStatus) -> dict[str, Any]:
    drift = {"missing": ["/".join(key) for key in found.drift.missing], "drift": list(found.drift.words)}
    certificates = found.certificates
    earliest = [_certificate_json(item, certificates.at_unix_s) for item in certificates.certificates[:1]]
    ends = {
        "earliest": earliest[0] if earliest else None,
        "expired": [_certificate_json(item, certificates.at_unix_s) for item in certificates.expired],
        "late": [_certificate_json(item, certificates.at_unix_s) for item in certificates.late],
        "damaged": list(certificates.damaged),
        "unread": list(certificates.unread),
    }
    return {**dataclasses.asdict(found), **drift, "certificates": ends, "well": found.is_well}


def _certificate_json(item: SecretCertificate, at_unix_s: float) -> dict[str, Any]:
    expires = datetime.datetime.fromtimestamp(item.expires_unix_s, datetime.UTC).isoformat(timespec="seconds")
    own = {"secret": item.secret, "key": item.key, "identity": item.identity}
    return own | {"expires": expires, "left_s": round(item.expires_unix_s - at_unix_s)}
