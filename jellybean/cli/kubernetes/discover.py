"""discover: the nodes of a cluster as infrastructure.yaml."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import app, example, page
from jellybean.cli.console import out, say, warn
from jellybean.cli.kubernetes.cluster import Context, Kubeconfig, connect_to
from jellybean.documents.schema.reader import read_file
from jellybean.errors import DocumentError, JellyBeanError
from jellybean.quantities import PRICE_PER_H, SIZE, InvalidValueError, format_quantity, parse_quantity

if TYPE_CHECKING:
    from jellybean_k8s import NodeFleet, NodePool

_UNPRICED = "there is no price for {}: give --prices FILE with its line, or label its nodes {}=0.526"
_DIGITS = 6


@app.command(
    epilog=example(
        "jellybean discover --context fleet --tiers edge,cloud --prices prices.yaml",
        "jellybean discover --context fleet --tiers edge,cloud --out my-digits/infrastructure.yaml",
    )
)
def discover(
    tiers: Annotated[str, typer.Option(metavar="A,B", help="Nearest the data first, as nodes' labels name them.")],
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML: pool, instance type or node to price: 0.526 USD/h.")
    ] = None,
    tier_label: Annotated[str, typer.Option(help="The nodes' label with their tier.")] = "jellybean.dev/tier",
    site_label: Annotated[str, typer.Option(help="The nodes' label with their site.")] = "jellybean.dev/site",
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of printing.")] = None,
) -> None:
    """Read a cluster's nodes (labels, size, GPUs, taints) into infrastructure.yaml; links are yours to write."""
    if file is not None:
        page("--out", file)
        if file.exists():
            raise JellyBeanError(f"{file} is there already: write to another, and take over what you want")
    names = [name for name in (text.strip() for text in tiers.split(",")) if name]
    if not names:
        raise typer.BadParameter("--tiers names none: --tiers edge,cloud")
    cluster = connect_to(kubeconfig, context, None)
    from jellybean_k8s import PRICE_LABEL
    from jellybean_k8s import discover_pools as pools_of

    known = _prices(prices) if prices is not None else {}
    fleet = pools_of(cluster.list("Node"), names, known, tier_label=tier_label, site_label=site_label)
    for text in fleet.left_out:
        warn(f"left out: {text}")
    if not fleet.pools:
        raise JellyBeanError(f"no node has a tier: kubectl label node NODE {tier_label}={names[0]}")
    if unpriced := [pool.name for pool in fleet.pools if pool.price_usd_per_h is None]:
        raise JellyBeanError(_UNPRICED.format(", ".join(unpriced), PRICE_LABEL))
    text = infrastructure_text(fleet, names)
    if file is None:
        print(text, end="")
    else:
        file.write_text(text, encoding="utf-8")
        out.print(f"wrote {len(fleet.pools)} pools to {file}", soft_wrap=True)
    if hint := _hint(fleet):
        say(hint)


def infrastructure_text(fleet: NodeFleet, tiers: list[str]) -> str:
    """The document."""
    lines = [
        "# Written by `jellybean discover` from the nodes of a cluster; links are not known there.",
        "kind: Infrastructure",
    ]
    lines.append(f"tiers: [{', '.join(tiers)}]")
    if fleet.sites:
        lines.append(f"sites: {{{', '.join(f'{tier}: {count}' for tier, count in fleet.sites.items())}}}")
    lines.append("workers:")
    lines += [f"  {pool.name}: {_worker(pool)}" for pool in fleet.pools]
    if len(tiers) > 1:
        lines.append("links: # write what they cost and carry, for example price: 0.10 USD/GiB, bandwidth: 100 Mbit/s")
        lines += [f"  - {{from: {low}, to: {high}}}" for low, high in itertools.pairwise(tiers)]
    return "\n".join(lines) + "\n"


def _worker(pool: NodePool) -> str:
    price = format_quantity(PRICE_PER_H, pool.price_usd_per_h or 0.0, _DIGITS)
    memory = format_quantity(SIZE, pool.memory_bytes, _DIGITS)
    about = f"{pool.cpu:g} cores" + (f", {pool.gpus} GPUs of {pool.gpu}" if pool.gpu else "")
    return f"{{tier: {pool.tier}, count: {pool.count}, price: {price}, memory: {memory}}} # {about}"


def _hint(fleet: NodeFleet) -> str:
    """What kubernetes.yaml needs for these pools."""
    pools = {pool.name: f"{{gpu: {pool.gpu}, gpus: {pool.gpus}}}" for pool in fleet.pools if pool.gpu}
    if not pools:
        return ""
    return "kubernetes.yaml needs: pools: {" + ", ".join(f"{name}: {text}" for name, text in pools.items()) + "}"


def _prices(path: Path) -> dict[str, float]:
    """Name -> USD per hour. DocumentError with every line that is none."""
    tree = read_file(path)
    found: dict[str, float] = {}
    for name, value in (tree.data if isinstance(tree.data, dict) else {}).items():
        try:
            found[str(name)] = parse_quantity(PRICE_PER_H, value)
        except InvalidValueError as error:
            tree.add((name,), str(error), error.hint)
    if not tree.problems and not isinstance(tree.data, dict):
        tree.add((), "is no map of names to prices", "write t4: 0.526 USD/h")
    if tree.problems:
        raise DocumentError(tree.problems)
    return found
