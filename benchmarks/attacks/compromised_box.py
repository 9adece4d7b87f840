"""The agent of a compromised box, altered in the way that the variable JELLYBEAN_ATTACK names.

`python -m benchmarks.attacks.compromised_box` with the options of an agent. It uses its own certificate and the streams
of the agent, so that only what it says is wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from typing import Any

import numpy as np

from jellybean_agent.__main__ import main
from jellybean_agent.process.agent_service import AgentService
from jellybean_protos.agent.v1 import agent_pb2

UPSTREAM, DOWNSTREAM, NEIGHBOUR, ROUTE = "gamma/right", "gamma/join", "cloud-1", 2  # what the plan gives this box
DESCRIPTION = b"\x22\x02\x0a\x00" * 15 * 2**20  # a map of as many operators without a name
_TENSOR = np.zeros(2**22, np.float32).tobytes()
_WAITING = 4  # messages in this process, which has a memory too


def send_inputs_without_others() -> None:
    """Send one input of a join after another, each of 16 MiB and for a request that nobody has made."""
    load = AgentService.load

    async def loaded(service: AgentService) -> None:
        await load(service)
        service.flood = asyncio.create_task(_send(service))  # type: ignore[attr-defined]

    AgentService.load = loaded  # type: ignore[assignment, method-assign]


async def _send(service: Any) -> None:
    peer = service._peers[NEIGHBOUR]
    for number in itertools.count():
        message = agent_pb2.Message(request_id=f"made-up-{number}", route=ROUTE, plan=service.view.hash)
        message.upstream, message.downstream, message.left_s = UPSTREAM, DOWNSTREAM, 3000.0
        message.tensor.dtype = "float32"
        message.tensor.shape.extend([1, len(_TENSOR) // 4])
        peer.put(message, 0.0, time.monotonic() + 60.0, _TENSOR)
        await asyncio.sleep(0)
        while peer.queued > _WAITING:
            await asyncio.sleep(0.005)


def state_endless_descriptions() -> None:
    """Answer each question of a gateway what this box is with 60 MiB of small parts."""
    handler = AgentService.handler

    def altered(service: AgentService) -> Any:
        found = handler(service)
        method = found._method_handlers["/jellybean.agent.v1.Agent/Describe"]
        changed = method._replace(response_serializer=lambda _: DESCRIPTION)
        found._method_handlers["/jellybean.agent.v1.Agent/Describe"] = changed
        return found

    AgentService.handler = altered  # type: ignore[assignment, method-assign]


ATTACKS = {"inputs without others": send_inputs_without_others, "endless descriptions": state_endless_descriptions}

if __name__ == "__main__":
    ATTACKS[os.environ["JELLYBEAN_ATTACK"]]()
    sys.exit(main(sys.argv[1:]))
