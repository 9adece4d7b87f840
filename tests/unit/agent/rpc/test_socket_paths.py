"""Unix sockets whose files are removed, and whose paths have characters that URIs escape."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jellybean_agent import RpcServer
from tests.rpc_server import ECHO, Link, served
from tests.support.waiting import wait_until_async


@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_a_removed_socket_is_bound_again_and_connections_last(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()

    async def ask(server: RpcServer, link: Link) -> None:
        async with link.channel() as before:
            assert await before.unary_unary(ECHO)(b"1") == b"1"
            if what == "the file":
                Path(link.path).unlink()
            else:
                shutil.rmtree(folder)
                folder.mkdir(mode=0o700)  # as a run's keeper makes it again
            await wait_until_async(Path(link.path).is_socket)
            async with link.channel() as after:
                assert await after.unary_unary(ECHO)(b"2") == b"2"
            assert await before.unary_unary(ECHO)(b"3") == b"3"

    served(folder, ask)


@pytest.mark.parametrize("name", ["a#b", "a%41", "a?b", "a b", "a[b", "a\nb", "\u00e4", "a\udcff"])
def test_a_channel_reaches_a_socket_of_any_name(tmp_path: Path, name: str) -> None:
    (folder := tmp_path / name).mkdir()

    async def ask(_: RpcServer, link: Link) -> bytes:
        async with link.channel() as channel:
            return await channel.unary_unary(ECHO)(b"1")

    assert served(folder, ask) == b"1"
