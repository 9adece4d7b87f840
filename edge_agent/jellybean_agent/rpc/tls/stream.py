"""A client of one stream of our own protocol over TLS, chosen by ALPN; otherwise as on a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import cast

import numpy as np

from jellybean_agent.errors import TransientError
from jellybean_agent.rpc.tls.transport import READ_BYTES, TlsTransport
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.rpc.unix_socket_frames import STREAMS_ALPN
from jellybean_agent.rpc.unix_socket_stream import CONNECT_S, UNSENT_BYTES, UnixSocketStream
from jellybean_agent.system.addresses import parse_address

_RESPONSE_BYTES = 2**14  # of plaintext that is read at once: responses are small


class TlsStream(UnixSocketStream, asyncio.BufferedProtocol):
    """One call to the server at HOST:PORT, whose certificate must have the DNS name `server_name`.

    The context offers the protocol by ALPN. A server that does not choose it gives UnixSocketRpcUnsupportedError.
    """

    def __init__(
        self,
        address: str,
        tls: tuple[ssl.SSLContext, str],  # context, server_name
        method: str,
        metadata: Iterable[tuple[str, str]],
        on_response: Callable[[bytes], None],
    ) -> None:
        super().__init__(address, method, metadata, on_response)
        self._context, self._server_name = tls
        self._buffer: memoryview = np.empty(_RESPONSE_BYTES, np.uint8).data

    async def _open_connection(self) -> None:
        await self._loop.create_connection(self._make_transport, *parse_address(self._path))

    def _make_transport(self) -> TlsTransport:
        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            return self._context.wrap_bio(incoming, outgoing, server_hostname=self._server_name)

        return TlsTransport(wrap, self, np.empty(READ_BYTES, np.uint8).data, CONNECT_S)

    # -- TlsEvents ----------------------------------------------------------------------------------------------------

    def connected(self, transport: TlsTransport, address: str) -> bool:
        return True  # it was made by this process

    def secured(self, transport: TlsTransport) -> asyncio.BufferedProtocol | None:
        if transport.tls.selected_alpn_protocol() == STREAMS_ALPN:
            return self
        self._end(UnixSocketRpcUnsupportedError(f"{self._path} has no streams of our own protocol"))
        return None

    def failed(self, transport: TlsTransport, reason: str) -> None:
        self._end(TransientError(f"{self._path}: TLS: {reason}"))

    def lost(self, transport: TlsTransport) -> None:
        self._end(TransientError("it closed the connection"))

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.ended.done():
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(UNSENT_BYTES)
        self._open_call()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self.data_received(bytes(self._buffer[:size]))
