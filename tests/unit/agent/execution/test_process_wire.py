"""What an agent and a host say to each other, over a real socket and real memory."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from jellybean_agent.execution import process_wire as host_wire
from jellybean_agent.execution.process_wire import Memory, Talk


def test_a_question_that_is_looked_for_and_one_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wire, "_PATIENCE_S", 10.0)
    mine, other = socket.socketpair()
    file = os.memfd_create("test")
    asks, hears = Talk(mine, Memory(file)), Talk(other, Memory(file))
    asks.say("a", {"do": "a"}, [np.arange(3, dtype=np.int64)])
    heard = hears.hear_soon()  # it is there
    assert (heard.header, heard.arrays[0].tolist(), hears._in_vain) == ({"do": "a"}, [0, 1, 2], 0)
    later = threading.Timer(0.02, asks.say, ("b", {"do": "b"}, ()))
    later.start()
    assert (hears.hear_soon().header, hears._in_vain) == ({"do": "b"}, 0)  # it came meanwhile
    later.join()
    monkeypatch.setattr(host_wire, "_PATIENCE_S", 0.0)
    for turn in range(host_wire._VAIN + 2):  # looked for in vain, then waited for; later waited for only
        asks.say(turn, {"do": turn}, ())
        assert hears.hear_soon().header == {"do": turn}
    assert hears._in_vain == host_wire._VAIN
    asks.say("a", {"do": "a"}, [np.arange(3, dtype=np.int64)])
    asks.say("c", {"do": "c"}, ())
    assert [hears.hear_soon().header["do"], hears.hear_soon().header["do"]] == ["a", "c"]
    mine.close()
    with pytest.raises(ConnectionError):
        hears.hear_soon()
    other.close()
    os.close(file)
