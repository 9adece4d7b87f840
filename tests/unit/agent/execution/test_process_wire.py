"""Messages between an agent and a model process, over a real socket and real memory."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from jellybean_agent.execution.process_wire import Conversation, SharedMemory, SpinSettings


def test_requests_found_by_spinning_and_by_waiting() -> None:
    mine, other = socket.socketpair()
    file = os.memfd_create("test")
    sender = Conversation(mine, SharedMemory(file))
    receiver = Conversation(other, SharedMemory(file), SpinSettings(longest_s=10.0))
    sender.send("a", {"do": "a"}, [np.arange(3, dtype=np.int64)])
    message = receiver.receive_spinning()  # it is there already
    assert (message.header, message.arrays[0].tolist(), receiver.failed_spins) == ({"do": "a"}, [0, 1, 2], 0)
    later = threading.Timer(0.02, sender.send, ("b", {"do": "b"}, ()))
    later.start()
    assert (receiver.receive_spinning().header, receiver.failed_spins) == ({"do": "b"}, 0)  # it came meanwhile
    later.join()
    receiver = Conversation(other, SharedMemory(file), SpinSettings(longest_s=0.0, max_failed=3))
    for turn in range(5):  # the first three spin in vain, then wait; the others wait at once
        sender.send(turn, {"do": turn}, ())
        assert receiver.receive_spinning().header == {"do": turn}
    assert receiver.failed_spins == 3
    sender.send("a", {"do": "a"}, [np.arange(3, dtype=np.int64)])
    sender.send("c", {"do": "c"}, ())
    assert [receiver.receive_spinning().header["do"], receiver.receive_spinning().header["do"]] == ["a", "c"]
    mine.close()
    with pytest.raises(ConnectionError):
        receiver.receive_spinning()
    other.close()
    os.close(file)
