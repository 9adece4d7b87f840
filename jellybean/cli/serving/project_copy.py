"""The documents and held-out data that a command measures with: those of DIR, or a copy of the gateway's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jellybean.documents import require_folder
from jellybean.documents.layout import document_files
from jellybean.errors import JellyBeanError
from jellybean_agent import stays_inside_folder

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint


@contextmanager
def project_copy(directory: Path, endpoint: Endpoint | None) -> Iterator[Path | None]:
    """A folder with the documents and held-out data of a gateway's project, if DIR has no documents; else None."""
    require_folder(directory)
    if endpoint is None or any(file.exists() for file in document_files(directory).values()):
        yield None
        return
    from jellybean.serving.client import Client

    with Client.at(endpoint) as client:
        files = client.project_files()
    with tempfile.TemporaryDirectory(prefix="jellybean-") as text:
        folder = Path(text)
        for path, content in files.items():
            if not stays_inside_folder(path):
                raise JellyBeanError(f"the gateway sent a file for {path!r}, outside of the project's folder")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        yield folder
