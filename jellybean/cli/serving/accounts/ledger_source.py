"""The ledger that a command's options name: the project's own file, a database, or a gateway that is asked."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jellybean.folders import shell_text
from jellybean.ledger.labels import LabelRule
from jellybean.ledger.ledger import ledger_url, opened_ledger
from jellybean.ledger.queries.source import LedgerSource, OpenedLedger
from jellybean_agent import full_disk_text

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint


_LEAST_BYTES = 2**16  # of free disk: with less, no interval can be written


def nothing_served(directory: Path, endpoint: Endpoint | None, url: str | None = None, *, in_span: bool = False) -> str:
    """What is said of a ledger in which nothing is: that nothing was served, or why that is not known.

    `url`: that of another database. `in_span`: the user asked about a span of time.
    """
    is_own = endpoint is None and url is None
    if is_own and (reason := _unknown_reason(directory)):
        return reason
    if in_span:
        return "nothing was served in this time"
    if endpoint is not None:
        return "nothing was served there yet"
    return f"nothing was served yet: jellybean up {shell_text(directory)}"


def _unknown_reason(directory: Path) -> str:
    """Why an empty ledger does not mean that nothing was served; empty if it does."""
    if full := full_disk(directory):
        return f"nothing is in the ledger: {full}"
    from jellybean.serving import GATEWAY_NAME, ServingError, run_of

    with contextlib.suppress(ServingError):
        run = run_of(directory)
        log = next((entry.log for entry in run.processes if entry.name == GATEWAY_NAME), "") if run is not None else ""
        if log:
            return (
                f"{shell_text(directory)} is up, and nothing is in its ledger yet: what was served is written every "
                f"10 s; if it stays so, the gateway's log says why: {log}"
            )
    return ""


def full_disk(directory: Path) -> str:
    """That the disk of the project's own ledger is full, and what to do; empty if it is not."""
    file = Path(ledger_url(directory))
    try:
        free_bytes = shutil.disk_usage(file.parent if file.parent.is_dir() else directory).free
    except OSError:
        return ""
    if free_bytes >= _LEAST_BYTES:
        return ""
    return f"{file}: {full_disk_text(file)}; a run that is up then writes what it counted since"


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
