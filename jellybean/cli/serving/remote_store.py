"""The report store that a command shows: DIR's own, with that of a gateway's project if one is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.cli.command_resources import open_for_command
from jellybean.report import Store

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint

_NOT_THERE = ("FAILED_PRECONDITION", "UNIMPLEMENTED")  # a gateway in Kubernetes, or of an older version


def shown_store(directory: Path, endpoint: Endpoint | None) -> Store:
    """The store of DIR; with `endpoint` a copy for this command, which also has what the gateway's project knows."""
    if endpoint is None:
        return Store.of(directory)
    return open_for_command(_merged(directory, endpoint))


@contextmanager
def _merged(directory: Path, endpoint: Endpoint) -> Iterator[Store]:
    from jellybean.serving.client import Client
    from jellybean.serving.errors import RequestError

    with tempfile.TemporaryDirectory(prefix="jellybean-") as text:
        theirs, both = (Store(Path(text) / name, directory=directory) for name in ("gateway.db", "both.db"))
        try:
            with Client.at(endpoint) as client:
                content = client.report_store()
        except RequestError as error:
            if error.status not in _NOT_THERE:
                raise
        else:
            theirs.path.write_bytes(content)
        both.add_stores((theirs, Store.of(directory)))
        yield both
