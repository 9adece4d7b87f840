"""Strangers at a server's port take a limited number of threads, for a limited time."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.parameter_server.channel import Channel, connect
from jellybean.training.parameter_server.listener import Listener

KEY = b"k" * 32
NONCE_BYTES = 32


def _echo(channel: Channel) -> None:
    with closing(channel):
        channel.send(channel.receive())


def test_connections_beyond_a_number_wait_until_a_handshake_ends(monkeypatch):
    monkeypatch.setattr("jellybean.training.parameter_server.listener._HANDSHAKES", 2)
    with closing(Listener("127.0.0.1", KEY, _echo)) as listener, ExitStack() as opened:
        address = ("127.0.0.1", listener.port)
        strangers = [opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3)]
        for stranger in strangers[:2]:
            assert stranger.recv(NONCE_BYTES)
        strangers[2].settimeout(0.3)
        with pytest.raises(TimeoutError):
            strangers[2].recv(NONCE_BYTES)
        strangers[0].close()
        strangers[2].settimeout(10)
        assert strangers[2].recv(NONCE_BYTES)


def test_connections_with_the_key_are_not_limited(monkeypatch):
    monkeypatch.setattr("jellybean.training.parameter_server.listener._HANDSHAKES", 2)
    with closing(Listener("127.0.0.1", KEY, _echo)) as listener, ExitStack() as opened:
        address = ("127.0.0.1", listener.port)
        channels = [opened.enter_context(closing(connect(address, KEY, 10))) for _ in range(4)]
        for number, channel in enumerate(channels):
            channel.send({"number": number})
        assert [channel.receive()["number"] for channel in channels] == [0, 1, 2, 3]
