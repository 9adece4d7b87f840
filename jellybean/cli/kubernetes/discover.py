"""Command discover: write infrastructure.yaml from the nodes of a cluster."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Json, app, checked_file, example
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.kubernetes.options import Context, Kubeconfig, connect_to
from jellybean.documents.schema.reader import read_file
from jellybean.errors import DocumentError, JellyBeanError
from jellybean.folders import write_output
from jellybean.quantities import PRICE_PER_H, SIZE, InvalidValueError, format_quantity, parse_quantity

if TYPE_CHECKING:
    from jellybean_k8s import NodeFleet, NodePool

_UNPRICED = "no price for {}: add it to a file for --prices, or label its nodes {}=0.526"
_DIGITS = 6


@app.command(
    epilog=example(
        "jellybean discover --context fleet --tiers edge,cloud --prices prices.yaml",
        "jellybean discover --context fleet --tiers edge,cloud --out my-digits/infrastructure.yaml",
    )
)
def discover(
    tiers: Annotated[
        str, typer.Option(metavar="A,B", help="Tiers as in the nodes' labels, the tier nearest to the data first.")
    ],
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML map from pool, instance type or node to its price, for example t4: 0.526 USD/h."
        ),
    ] = None,
    tier_label: Annotated[str, typer.Option(help="Node label with the tier.")] = "jellybean.dev/tier",
    site_label: Annotated[str, typer.Option(help="Node label with the site.")] = "jellybean.dev/site",
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Write infrastructure.yaml from a cluster's nodes (labels, size, GPUs, taints). Add the links yourself."""
    if file is not None:
        checked_file("--out", file)
        if file.exists():
            raise JellyBeanError(f"{file} exists already: choose another file")
    names = [name for name in (text.strip() for text in tiers.split(",")) if name]
    if not names:
        raise typer.BadParameter("--tiers is empty: write for example --tiers edge,cloud")
    cluster = connect_to(kubeconfig, context, None)
    from jellybean_k8s import PRICE_LABEL, discover_pools

    known = _prices(prices) if prices is not None else {}
    fleet = discover_pools(cluster.list("Node"), names, known, tier_label=tier_label, site_label=site_label)
    for text in fleet.left_out:
        warn(f"skipped: {text}")
    _require_pools(fleet, tier_label, names[0], PRICE_LABEL)
    text = infrastructure_text(fleet, names)
    if file is not None:
        write_output(file, text)
    if json:
        print_json(_record(fleet, text, file))
    elif file is None:
        print(text, end="")
    else:
        out.print(f"wrote {len(fleet.pools)} pools to {file}", soft_wrap=True)
    if hint := _hint(fleet):
        say(hint)


def _require_pools(fleet: NodeFleet, tier_label: str, tier: str, price_label: str) -> None:
    """JellyBeanError if no node has a tier, or a pool has no price."""
    if not fleet.pools:
        raise JellyBeanError(f"no node has a tier label; set it: kubectl label node NODE {tier_label}={tier}")
    if unpriced := [pool.name for pool in fleet.pools if pool.price_usd_per_h is None]:
        raise JellyBeanError(_UNPRICED.format(", ".join(unpriced), price_label))


def _record(fleet: NodeFleet, text: str, file: Path | None) -> dict[str, Any]:
    """What was discovered, as JSON values."""
    return {
        "pools": [dataclasses.asdict(pool) for pool in fleet.pools],
        "sites": dict(fleet.sites),
        "skipped": list(fleet.left_out),
        "infrastructure": text,
        "file": None if file is None else str(file),
    }


def infrastructure_text(fleet: NodeFleet, tiers: list[str]) -> str:
    """The text of infrastructure.yaml."""
    lines = [
        "# Written by `jellybean discover` from the nodes of a cluster; add the links by hand.",
        "kind: Infrastructure",
    ]
    lines.append(f"tiers: [{', '.join(tiers)}]")
    if fleet.sites:
        lines.append(f"sites: {{{', '.join(f'{tier}: {count}' for tier, count in fleet.sites.items())}}}")
    lines.append("workers:")
    lines += [f"  {pool.name}: {_worker(pool)}" for pool in fleet.pools]
    if len(tiers) > 1:
        lines.append("links: # add prices and bandwidths, for example price: 0.10 USD/GiB, bandwidth: 100 Mbit/s")
        lines += [f"  - {{from: {low}, to: {high}}}" for low, high in itertools.pairwise(tiers)]
    return "\n".join(lines) + "\n"


def _worker(pool: NodePool) -> str:
    price = format_quantity(PRICE_PER_H, pool.price_usd_per_h or 0.0, _DIGITS)
    memory = format_quantity(SIZE, pool.memory_bytes, _DIGITS)
    about = f"{pool.cpu:g} cores" + (f", {pool.gpus} GPUs of {pool.gpu} on each node" if pool.gpu else "")
    device = f", device: {pool.device}" if pool.device is not None else ""
    if pool.device_memory_bytes is not None:
        device += f", device_memory: {format_quantity(SIZE, pool.device_memory_bytes, _DIGITS)}"
    if pool.mig is not None:
        device += f", share: {{mig: {pool.mig}}}"
    return f"{{tier: {pool.tier}, count: {pool.count}, price: {price}, memory: {memory}{device}}} # {about}"


def _hint(fleet: NodeFleet) -> str:
    """Advice to the user: the images of agents that the fleet's devices need; empty if the CPU's is enough."""
    devices = dict.fromkeys(pool.device or "cpu" for pool in fleet.pools)
    if set(devices) == {"cpu"}:
        return ""
    return "kubernetes.yaml needs: images: {agent: {" + ", ".join(f"{device}: IMAGE" for device in devices) + "}}"


def _prices(path: Path) -> dict[str, float]:
    """Read prices: name -> USD per hour. DocumentError with every invalid entry."""
    tree = read_file(path)
    prices: dict[str, float] = {}
    for name, value in (tree.data if isinstance(tree.data, dict) else {}).items():
        try:
            prices[str(name)] = parse_quantity(PRICE_PER_H, value)
        except InvalidValueError as error:
            tree.add((name,), str(error), error.hint)
    if not tree.problems and not isinstance(tree.data, dict):
        tree.add((), "is not a map of names to prices", "write t4: 0.526 USD/h")
    if tree.problems:
        raise DocumentError(tree.problems)
    return prices
