"""What an API server passes on to pods: forwarded ports (WebSocket, v4.channel.k8s.io) and HTTP through its proxy."""

from __future__ import annotations

import asyncio
import re
import struct

import aiohttp
import aiohttp.web

from tests.support.balancer import Endpoint

PORT_FORWARD = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/]+)/portforward")
PROXY = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/:]+):(?P<port>\d+)/proxy(?P<path>/.*)")
_PROTOCOLS = ("v4.channel.k8s.io",)
_DATA = b"\x00"  # channel of a port's bytes; the next one has its errors


async def forward_port(request: aiohttp.web.Request, port: int, endpoint: Endpoint) -> aiohttp.web.WebSocketResponse:
    """Forward a pod's port to an endpoint of this machine until either side ends."""
    answer = aiohttp.web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
    await answer.prepare(request)
    for channel in (b"\x00", b"\x01"):
        await answer.send_bytes(channel + struct.pack("<H", port))
    reader, writer = await asyncio.open_connection(*endpoint)

    async def back() -> None:
        while data := await reader.read(2**16):
            await answer.send_bytes(_DATA + data)
        await answer.close()

    task = asyncio.create_task(back())
    try:
        async for message in answer:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == _DATA:
                writer.write(message.data[1:])
    finally:  # the server may end first
        task.cancel()
        writer.close()
    return answer


async def proxied(endpoint: Endpoint, path: str) -> aiohttp.web.Response:
    """What a process on this machine answers in a pod's place."""
    host, port = endpoint
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as found:
        return aiohttp.web.Response(body=await found.read(), status=found.status)
