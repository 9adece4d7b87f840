"""The frames of our own protocol on Unix sockets: constants shared by its server and its clients.

The client sends a greeting and the server returns one. Then both sides send frames: length, number of the call, kind,
and, depending on the kind, a call's head and request, a response, or a failure. A client that sends the second form of
the greeting may also open streams, of methods with a raw handler.
"""

from __future__ import annotations

import socket
import struct

GREETING, STREAMS_GREETING = b"JELLYBEAN LANE 1\n", b"JELLYBEAN LANE 2\n"
STREAMS_ALPN = "jellybean-lane/2"  # over TLS the protocol is chosen by ALPN, and there is no greeting
FRAME = struct.Struct("<IIB")  # length of what follows the length, the call's number, kind
AFTER_LENGTH = FRAME.size - 4  # bytes of FRAME that the length counts
CALL, CANCEL, REPLY, FAILED = range(4)
OPEN, MESSAGE, END = range(4, 7)  # kinds for streams: head, message (both ways), half-close (from server: status OK)
HEAD = struct.Struct("<dHH")  # seconds left (0: no deadline), bytes of the method's path, and of the metadata (JSON)
STATUS = struct.Struct("<B")  # status of a FAILED call; its reason follows
SOCKET_BYTES = 2**20  # send buffer, as far as the system allows it: a large tensor then leaves in one system call
_CREDENTIALS = struct.Struct("=iII")  # of SO_PEERCRED: pid, uid, gid


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket (SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
