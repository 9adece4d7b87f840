"""The ledger that a command's options name: the project's own file, a database, or a gateway that is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jellybean.folders import shell_text
from jellybean.ledger.labels import LabelRule
from jellybean.ledger.ledger import opened_ledger
from jellybean.ledger.queries.source import LedgerSource, OpenedLedger

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint


def nothing_served(directory: Path, endpoint: Endpoint | None) -> str:
    """What is said of a ledger in which nothing is."""
    if endpoint is not None:
        return "nothing was served there yet"
    return f"nothing was served yet: jellybean up {shell_text(directory)}"


@contextmanager
def open_ledger_source(
    directory: Path,
    url: str | None,
    endpoint: Endpoint | None,
    *,
    rules: Mapping[str, LabelRule] = {},
) -> Iterator[LedgerSource]:
    """The ledger of a gateway (`endpoint`), else that of `--ledger`, else the project's own.

    `rules`: workflow -> how labels judge its answers, as of an `OpenedLedger`; a gateway has its own.
    """
    if endpoint is None:
        with opened_ledger(directory, url) as opened:
            yield OpenedLedger(opened, rules)
        return
    if url is not None:
        raise typer.BadParameter("--ledger names a database, --gateway and --context whom to ask: give one of them")
    from jellybean.serving.client import Client
    from jellybean.serving.remote_ledger import RemoteLedger

    with Client.at(endpoint) as client:
        yield RemoteLedger(client)
