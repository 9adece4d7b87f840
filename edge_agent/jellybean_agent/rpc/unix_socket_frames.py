"""The frames of our own protocol on Unix sockets: constants shared by its server and its clients.

A client greets the server with a greeting and is greeted back. From then on both sides send frames: their length, a
call's number, a kind, and by kind a call's head and request, a response, or a failure. After the second greeting there
are streams, too, of methods that are served raw.
"""

from __future__ import annotations

import socket
import struct

GREETING, STREAMS_GREETING = b"JELLYBEAN LANE 1\n", b"JELLYBEAN LANE 2\n"
FRAME = struct.Struct("<IIB")  # length of what follows the length, the call's number, kind
AFTER_LENGTH = FRAME.size - 4  # bytes of FRAME that the length counts
CALL, CANCEL, REPLY, FAILED = range(4)
OPEN, MESSAGE, END = range(4, 7)  # of streams: head, message (both ways), half-close (from the server: status OK)
HEAD = struct.Struct("<dHH")  # seconds left (0: no deadline), bytes of the method's path, and of the metadata (JSON)
STATUS = struct.Struct("<B")  # status of a FAILED call; its reason follows
SOCKET_BYTES = 2**20  # send buffer, as far as the system allows it: a large tensor then leaves in one system call
_CREDENTIALS = struct.Struct("=iII")  # of SO_PEERCRED: pid, uid, gid


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket (SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
