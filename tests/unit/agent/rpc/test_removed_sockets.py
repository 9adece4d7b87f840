"""A Unix socket whose file is removed is bound again, but not where other users may have made its folder."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from jellybean_agent.rpc import server as rpc_server
from jellybean_agent.system.private_files import is_in_private_folder
from tests.support.http2_client import CallServer, settle


@pytest.mark.parametrize(("mode", "is_bound"), [(0o700, True), (0o755, False), (0o777, False)])
def test_a_removed_socket_is_bound_again_in_a_private_folder(
    monkeypatch: pytest.MonkeyPatch, mode: int, is_bound: bool
) -> None:
    async def test(folder: Path) -> None:
        calls = CallServer()
        calls.server._bind(f"unix:{folder}/x.sock", calls.port, None)
        await calls.server.start()
        shutil.rmtree(folder)
        await settle()
        folder.mkdir()
        folder.chmod(mode)
        assert is_in_private_folder(folder / "x.sock") is is_bound
        await settle()
        assert (folder / "x.sock").is_socket() is is_bound
        await calls.server.stop(0.0)

    monkeypatch.setattr(rpc_server, "_PATHS_S", 0.0)
    folder = Path(tempfile.mkdtemp(prefix="jb-", dir="/tmp"))  # pytest's folder is private itself
    try:
        asyncio.run(test(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
