"""What one process accepts in all, over its listening sockets: bytes of requests and answers, and open connections."""

from __future__ import annotations

import resource
from collections import Counter

from jellybean_agent.admission.limits import ListeningPort
from jellybean_agent.admission.shares import SharedLimit
from jellybean_agent.admission.turns import PeerTurns
from jellybean_agent.system.memory import process_memory_bytes

REQUEST_BYTES = 256 * 2**20
_MEMORY_SHARE = 4  # of a small machine, a quarter of its memory
_WAITING_SHARE, _LEAST_WAITING_BYTES = 4, 2**22
_RESERVED_FILES = 256  # of the process itself: models, journals, its connections to others
_MIN_CONNECTIONS = 64


class Admission:
    """The limits that the listening sockets of a process share.

    `bytes`: of messages that are received, decompressed, queued or not sent yet. `connections`: open ones, so that
    the process keeps open files for itself. `turns`: of peers at the event loop. `waiting`: bytes that were read and
    wait for their peer's turn, apart from the others, so that a client with large requests is not cut off for them.
    `refused`: how many connections and calls were refused or ended, by port and reason.
    """

    def __init__(self, request_bytes: int | None = None, open_files: int | None = None) -> None:
        """Limits of this machine where none are given."""
        if request_bytes is None:
            request_bytes = min(REQUEST_BYTES, process_memory_bytes() // _MEMORY_SHARE)
        if open_files is None:
            open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.bytes = SharedLimit(request_bytes)
        self.waiting = SharedLimit(max(_LEAST_WAITING_BYTES, request_bytes // _WAITING_SHARE))
        self.connections = SharedLimit(max(_MIN_CONNECTIONS, open_files - _RESERVED_FILES))
        self.turns = PeerTurns()
        self.refused: Counter[tuple[ListeningPort, str]] = Counter()
