"""Prints what a deployment would change, by a server-side dry run."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from jellybean.cli.console import out, say
from jellybean.cli.exit_status import EXIT_FAILURE
from jellybean.display.terminal import BAD, GOOD

if TYPE_CHECKING:
    from jellybean_k8s import ClusterPart

EXIT_DIFFERENT = EXIT_FAILURE  # different, or not compared
_CLUSTER_ONLY = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink")


def print_changes(parts: Sequence[ClusterPart], *, force: bool, skip_offline: bool = False) -> None:
    """Print what deploying would change, by cluster; typer.Exit(1) if it would change anything, or that is not known.

    `skip_offline`: clusters that are away, except the gateway's, do not count.
    """
    from jellybean_k8s import NotCompared, dry_run, dry_run_parts

    first = parts[0]
    if first.name:
        found = dry_run_parts(parts, force=force)
    else:
        found = {"": dry_run(first.cluster, first.deployed, first.objects, force=force)}
    is_same = True
    for name, compared in found.items():
        if not isinstance(compared, NotCompared):
            is_same &= not compared
            _print_pairs(name, compared)
        elif skip_offline and compared.is_away and name != first.name:
            say(f"{name} is left out: it does not answer ({compared.reason})")
        else:
            is_same = False
            out.print(f"{name} was not compared: {compared.reason}", style=BAD, soft_wrap=True)
    if not is_same:
        raise typer.Exit(EXIT_DIFFERENT)
    out.print("nothing would change", style=GOOD)


def _print_pairs(cluster: str, pairs: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]) -> None:
    if pairs and cluster:
        out.print(f"{cluster}:", style="bold")
    for before, after in pairs:
        for line in _difference(before, after):
            style = GOOD if line.startswith("+") else BAD if line.startswith("-") else "dim"
            out.print(line, style=style, soft_wrap=True)


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[str]:
    from jellybean_k8s import to_yaml

    item = after or before or {}
    name = f"{item['kind']}/{item['metadata']['name']}"
    if after is None:
        yield f"- {name}: pruned"
        return
    if before is None:
        yield f"+ {name}: new"
        return
    old, new = (to_yaml(_without_cluster_fields(value)).splitlines() for value in (before, after))
    yield from difflib.unified_diff(old, new, name, name, lineterm="", n=2)


def _without_cluster_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The object without fields that the cluster sets; secrets are replaced by short hashes."""
    meta = {key: value for key, value in item["metadata"].items() if key not in _CLUSTER_ONLY}
    fields = {key: value for key, value in item.items() if key not in ("metadata", "status", "apiVersion")}
    if item["kind"] == "Secret":
        data = item.get("data") or {}
        fields["data"] = {key: hashlib.sha256(str(value).encode()).hexdigest()[:8] for key, value in data.items()}
    return {"metadata": meta, **_sorted(fields)}


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
